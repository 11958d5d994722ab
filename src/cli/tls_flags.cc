#include "cli/tls_flags.h"

#include <CLI/CLI.hpp>
#include <utility>

#include "cli/io.h"

namespace deepinfer {

void TlsFlags::Register(CLI::App* app) {
  app->add_option("--tls-cert", certificate_file,
                  "PEM certificate of this process for the name deepinfer: sessions between "
                  "processes are encrypted and both sides must show one");
  app->add_option("--tls-key", key_file, "PEM key of --tls-cert");
  app->add_option("--tls-ca", authority_file, "PEM certificate of the authority that signs them");
}

Result<SecurityPtr> TlsFlags::Load() const {
  if (certificate_file.empty() && key_file.empty() && authority_file.empty()) {
    return SecurityPtr();
  }
  if (certificate_file.empty() || key_file.empty() || authority_file.empty()) {
    return InvalidRequest("--tls-cert, --tls-key and --tls-ca belong together");
  }
  SessionSecurity security;
  DI_ASSIGN_OR_RETURN(security.certificate, ReadTextFile(certificate_file));
  DI_ASSIGN_OR_RETURN(security.key, ReadTextFile(key_file));
  DI_ASSIGN_OR_RETURN(security.authority, ReadTextFile(authority_file));
  return SecurityPtr(std::make_shared<SessionSecurity>(std::move(security)));
}

}  // namespace deepinfer
