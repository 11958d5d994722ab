// Where the pages of large memory lie and when they are taken: huge pages, all at once, spread over
// memory nodes.
// Thread rule: free functions from any thread; InterleavedPages acts on the thread it lives on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace deepinfer {

// Memory for pools and scratch: 64-byte aligned, contents unspecified. Large memory comes in huge
// pages where the system has them, spread over its memory nodes, every page taken now, so that
// first use costs no page fault. nullptr when it is exhausted. Given back with std::free.
std::byte* AllocateLargeMemory(int64_t size_bytes);

// Takes every page of writable memory now; contents stay. False when the system has not enough.
bool PrefaultMemory(std::byte* memory, int64_t size_bytes);

// Bits of a node mask as the kernel wants it: bit n of the words is node n.
std::vector<unsigned long> NodeMask(std::span<const int> nodes);

// While it lives, pages that its thread takes first are spread over the nodes in turn, those of
// files too. Does nothing for fewer than two nodes, or when the process already has a memory
// policy, because an operator chose that one.
class InterleavedPages {
 public:
  explicit InterleavedPages(std::span<const int> nodes);
  ~InterleavedPages();
  InterleavedPages(const InterleavedPages&) = delete;
  InterleavedPages& operator=(const InterleavedPages&) = delete;

  bool active() const { return active_; }

 private:
  bool active_ = false;
};

}  // namespace deepinfer
