#include "model/workspace.h"

#include <algorithm>
#include <new>

namespace deepinfer {

namespace {
constexpr int64_t kAlignment = 64;
constexpr int64_t kMinChunk = 1 << 20;
}  // namespace

Workspace::~Workspace() {
  for (const Chunk& c : chunks_) ops_->Free(c.memory);
}

std::byte* Workspace::Bytes(int64_t size_bytes) {
  const int64_t size = (size_bytes + kAlignment - 1) / kAlignment * kAlignment;
  while (chunk_ < chunks_.size() && used_ + size > chunks_[chunk_].size) {
    ++chunk_;
    used_ = 0;
  }
  if (chunk_ == chunks_.size()) {
    // Doubling keeps the number of chunks small whatever the order of requests.
    const int64_t chunk = std::max({kMinChunk, size, capacity_bytes()});
    std::byte* memory = ops_->Allocate(chunk);
    if (memory == nullptr) throw std::bad_alloc();
    chunks_.push_back({memory, chunk});
    used_ = 0;
  }
  std::byte* p = chunks_[chunk_].memory + used_;
  used_ += size;
  return p;
}

int64_t Workspace::capacity_bytes() const {
  int64_t total = 0;
  for (const Chunk& c : chunks_) total += c.size;
  return total;
}

}  // namespace deepinfer
