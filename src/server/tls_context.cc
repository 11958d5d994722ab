#include "server/tls_context.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <string>
#include <string_view>
#include <utility>

namespace deepinfer {
namespace {

namespace ssl = boost::asio::ssl;
using boost::system::error_code;

// The only protocol spoken behind the handshake, in the form of ALPN.
constexpr unsigned char kHttp11[] = "\x08http/1.1";

int SelectProtocol(SSL* /*ssl*/, const unsigned char** out, unsigned char* out_size,
                   const unsigned char* offered, unsigned int offered_size, void* /*unused*/) {
  unsigned char* selected = nullptr;
  const int result = SSL_select_next_proto(&selected, out_size, kHttp11, sizeof kHttp11 - 1,
                                           offered, offered_size);
  *out = selected;
  return result == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_NOACK;
}

Status Fault(std::string_view flag, const std::string& file, std::string_view what) {
  ERR_clear_error();
  return InvalidRequest(std::string(flag).append(" ").append(file).append(": ").append(what));
}

Status LoadFiles(const TlsOptions& options, ssl::context* context) {
  error_code error;
  if (context->use_certificate_chain_file(options.certificate_file, error)) {
    return Fault("--ssl-certfile", options.certificate_file, error.message());
  }
  if (context->use_private_key_file(options.key_file, ssl::context::pem, error)) {
    // Reading a key compares it with the certificate at once.
    const bool is_other =
        ERR_GET_REASON(static_cast<unsigned long>(error.value())) == X509_R_KEY_VALUES_MISMATCH;
    return Fault("--ssl-keyfile", options.key_file,
                 is_other ? "the key does not belong to the certificate " + options.certificate_file
                          : error.message());
  }
  if (SSL_CTX_check_private_key(context->native_handle()) != 1) {
    return Fault("--ssl-keyfile", options.key_file,
                 "the key does not belong to the certificate " + options.certificate_file);
  }
  if (!options.ciphers.empty() &&
      SSL_CTX_set_cipher_list(context->native_handle(), options.ciphers.c_str()) != 1) {
    return Fault("--ssl-ciphers", options.ciphers, "no cipher of TLS 1.2 matches");
  }
  if (options.authority_file.empty()) return OkStatus();
  if (context->load_verify_file(options.authority_file, error)) {
    return Fault("--ssl-ca-certs", options.authority_file, error.message());
  }
  context->set_verify_mode(ssl::verify_peer | ssl::verify_fail_if_no_peer_cert, error);
  return OkStatus();
}

}  // namespace

Result<TlsContext> LoadTlsContext(const TlsOptions& options) {
  if (options.certificate_file.empty() || options.key_file.empty()) {
    return InvalidRequest(
        "--ssl-certfile and --ssl-keyfile belong together, and the other --ssl flags need them");
  }
  auto context = std::make_shared<ssl::context>(ssl::context::tls_server);
  SSL_CTX* const handle = context->native_handle();
  SSL_CTX_set_min_proto_version(handle, TLS1_2_VERSION);
  SSL_CTX_set_options(handle, SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_alpn_select_cb(handle, SelectProtocol, nullptr);
  // Sessions of a client certificate need a name for the server they belong to.
  static constexpr unsigned char kSessionName[] = "deepinfer";
  SSL_CTX_set_session_id_context(handle, kSessionName, sizeof kSessionName - 1);
  // An encrypted key would be asked for on the terminal.
  SSL_CTX_set_default_passwd_cb(handle, [](char*, int, int, void*) { return 0; });
  DI_RETURN_IF_ERROR(LoadFiles(options, context.get()));
  return context;
}

}  // namespace deepinfer
