// The way bytes take to a landing in another process.
// Thread rule: Send by one thread at a time, Interrupt by any. Once it is destroyed, nothing of
// this side is written any more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"
#include "transfer/extent.h"
#include "transfer/socket.h"

namespace deepinfer {

class ExtentPath {
 public:
  virtual ~ExtentPath() = default;

  // Puts the bytes where the landing finds them. unavailable: the peer is gone; deadline: it
  // stands still.
  virtual Status Send(const Extent& extent, std::span<const std::byte> bytes,
                      SocketDeadline deadline) = 0;

  // True when the landing learns of an extent by a message, not by the bytes themselves.
  virtual bool needs_message() const = 0;

  // Ends a Send that waits.
  virtual void Interrupt() = 0;
};

// The window of LandingGrant::shared_window. Errors of SharedWindow::Open.
Result<std::unique_ptr<ExtentPath>> OpenSharedPath(const std::string& address,
                                                   int64_t window_bytes);
// A connection to a DataServer. Errors of ConnectTcp.
Result<std::unique_ptr<ExtentPath>> OpenStreamPath(const std::string& host, uint16_t port,
                                                   SocketDeadline deadline);

}  // namespace deepinfer
