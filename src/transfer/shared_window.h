// Memory that the processes of one machine share for bytes on their way. It has no name in a file
// system: the kernel takes it back when nobody has it any more, however its owner ended.
// Thread rule: the mapping may be used by any thread; who writes where is agreed by credits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "transfer/socket.h"

namespace deepinfer {

class SharedWindow {
 public:
  SharedWindow() = default;
  SharedWindow(SharedWindow&& other) noexcept;
  SharedWindow& operator=(SharedWindow&& other) noexcept;
  ~SharedWindow();  // the mapping ends; pages live on while a peer has one

  // unavailable when the system refuses.
  static Result<SharedWindow> Create(int64_t size_bytes);
  // By the address of another process of this machine and user. unavailable when that process is
  // gone or out of reach; data_corruption when the memory is not what the address says.
  static Result<SharedWindow> Open(const std::string& address, int64_t size_bytes);

  // For Open; valid while the owner lives and keeps the window.
  const std::string& address() const { return address_; }
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  SharedWindow(std::string address, std::span<std::byte> bytes, UniqueFd fd)
      : address_(std::move(address)), bytes_(bytes), fd_(std::move(fd)) {}

  std::string address_;
  std::span<std::byte> bytes_;
  UniqueFd fd_;  // the owner's: peers reach the memory through it
};

}  // namespace deepinfer
