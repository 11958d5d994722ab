// Certificates of the processes of a cluster.
// Thread rule: main thread.
#pragma once

#include <string>

#include "base/result.h"
#include "cluster/session.h"

namespace CLI {
class App;
}

namespace deepinfer {

struct TlsFlags {
  std::string certificate_file;
  std::string key_file;
  std::string authority_file;

  void Register(CLI::App* app);

  // Null without any of the flags. invalid_request: only some of them; not_found: no such file.
  Result<SecurityPtr> Load() const;
};

}  // namespace deepinfer
