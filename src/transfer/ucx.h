// Extents by UCX, for machines with RDMA (docs/cluster.md §6). Compiled where its headers are found
// (cmake option DEEPINFER_UCX); the library itself is loaded when a process asks for it, so that no
// other one has its hooks and signal handlers.
//
// Bytes come as active messages and are copied into their landing, as those of a data connection
// are. Remote writes are left out: over TCP UCX emulates them without a look at the key, so that a
// late one would reach memory that has another owner by then.
// Thread rule: see each class.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "transfer/data_server.h"
#include "transfer/extent_path.h"

namespace deepinfer {

// The library and what it found on this machine. Any thread; a process needs one.
class UcxContext;
using UcxContextPtr = std::shared_ptr<UcxContext>;

struct UcxOptions {
  // Names of UCX, as "rc,tcp" or "shm"; empty: its own choice.
  std::string transports;
};

// False when this build knows nothing of UCX.
bool HasUcx();
// unsupported: this build has no UCX, or the machine lacks the library; invalid_request: no such
// transport here.
Result<UcxContextPtr> OpenUcx(const UcxOptions& options);

// Takes extents from other processes into their landings; who sends anything else is ignored.
// The callback runs on a thread of the server. Owner: HandOffReceiver.
class UcxServer {
 public:
  // landings is borrowed. unavailable: UCX can make nothing to listen with.
  static Result<std::unique_ptr<UcxServer>> Start(UcxContextPtr context, LandingTable* landings,
                                                  DataServer::OnExtent on_extent);
  ~UcxServer();  // nothing is written to a landing afterwards

  // Bytes that OpenUcxPath takes, on any machine that this one can be reached from.
  const std::string& address() const;

 private:
  class Impl;
  explicit UcxServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// unavailable: the address is nonsense, or nobody is there; deadline: it does not answer.
Result<std::unique_ptr<ExtentPath>> OpenUcxPath(UcxContextPtr context, const std::string& address,
                                                SocketDeadline deadline);

}  // namespace deepinfer
