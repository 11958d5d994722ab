// The dev registry: the etcd v3 interface over keys in memory, for tests and clusters on one
// machine (docs/cluster.md §7). Thread rule: any thread. Owner: `deepinfer registry`.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/result.h"

namespace deepinfer {

class RegistryServer {
 public:
  // "unix:PATH" or "HOST:PORT", port 0: the system's choice. clock is borrowed. unavailable when
  // the address cannot be had.
  static Result<std::unique_ptr<RegistryServer>> Listen(const std::string& endpoint,
                                                        const Clock* clock);
  virtual ~RegistryServer() = default;  // ends every call

  // Where clients connect.
  virtual const std::string& endpoint() const = 0;
};

}  // namespace deepinfer
