// Bytes that begin at a page boundary, as direct I/O needs them.
// Thread rule: one owner.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>

#include "kvcache/layout.h"

namespace deepinfer {

class PageBuffer {
 public:
  PageBuffer() = default;
  // size_bytes is a multiple of a page. The content is not cleared.
  explicit PageBuffer(int64_t size_bytes)
      : bytes_(static_cast<std::byte*>(
            std::aligned_alloc(kPageBytes, static_cast<size_t>(size_bytes)))),
        size_(bytes_ == nullptr ? 0 : static_cast<size_t>(size_bytes)) {}

  // False when the memory was not there.
  bool ok() const { return bytes_ != nullptr; }
  std::span<std::byte> bytes() { return {bytes_.get(), size_}; }
  std::span<const std::byte> bytes() const { return {bytes_.get(), size_}; }

 private:
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  std::unique_ptr<std::byte[], Free> bytes_;
  size_t size_ = 0;
};

}  // namespace deepinfer
