#include "base/memory_pages.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "base/cpu_topology.h"
#include "base/process_stats.h"

namespace deepinfer {

namespace {

constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;
// Smaller memory would waste much of its last huge page.
constexpr uint64_t kMinLargeBytes = 4 * kHugePageBytes;
constexpr int kBitsPerWord = 8 * sizeof(unsigned long);

uint64_t AlignUp(uint64_t n, uint64_t unit) { return (n + unit - 1) / unit * unit; }

// Writes one byte of each page back to itself: the way on kernels before 5.14.
void TouchPages(std::byte* memory, uint64_t size_bytes, uint64_t page_bytes) {
  for (uint64_t offset = 0; offset < size_bytes; offset += page_bytes) {
    volatile std::byte* page = memory + offset;
    *page = *page;
  }
}

}  // namespace

std::byte* AllocateLargeMemory(int64_t size_bytes) {
  const uint64_t size = AlignUp(std::max<uint64_t>(1, static_cast<uint64_t>(size_bytes)), 64);
  if (size < kMinLargeBytes) return static_cast<std::byte*>(std::aligned_alloc(64, size));
  const uint64_t padded = AlignUp(size, kHugePageBytes);
  // Taking more than there is would make the system end a process, perhaps this one.
  const int64_t available = ReadAvailableMemory();
  if (available >= 0 && padded > static_cast<uint64_t>(available)) return nullptr;
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(kHugePageBytes, padded));
  if (memory == nullptr) return nullptr;
  // A system without huge pages refuses the hint; the memory works the same without it.
  static_cast<void>(madvise(memory, padded, MADV_HUGEPAGE));
  const InterleavedPages interleaved(ReadCpuTopology().memory_nodes);
  if (PrefaultMemory(memory, static_cast<int64_t>(padded))) return memory;
  std::free(memory);
  return nullptr;
}

bool PrefaultMemory(std::byte* memory, int64_t size_bytes) {
  const uint64_t page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  // Whole pages inside the memory; what it shares with others at its ends is in use anyway.
  const auto address = reinterpret_cast<uintptr_t>(memory);
  const uint64_t first = AlignUp(address, page_bytes);
  const uint64_t last = (address + static_cast<uint64_t>(size_bytes)) / page_bytes * page_bytes;
  if (first >= last) return true;
  std::byte* start = memory + (first - address);
  int error = 0;
  do {
    error = madvise(start, last - first, MADV_POPULATE_WRITE) == 0 ? 0 : errno;
  } while (error == EINTR || error == EAGAIN);
  if (error == EINVAL) TouchPages(start, last - first, page_bytes);
  return error == 0 || error == EINVAL;
}

std::vector<unsigned long> NodeMask(std::span<const int> nodes) {
  std::vector<unsigned long> words;
  for (int node : nodes) {
    const size_t word = static_cast<size_t>(node / kBitsPerWord);
    if (words.size() <= word) words.resize(word + 1);
    words[word] |= 1ul << (node % kBitsPerWord);
  }
  return words;
}

InterleavedPages::InterleavedPages(std::span<const int> nodes) {
  if (nodes.size() < 2) return;
  int policy = MPOL_DEFAULT;
  if (syscall(SYS_get_mempolicy, &policy, nullptr, 0ul, nullptr, 0ul) != 0) return;
  if (policy != MPOL_DEFAULT) return;
  const std::vector<unsigned long> mask = NodeMask(nodes);
  // The kernel reads one bit less than it is told.
  const unsigned long bits = mask.size() * kBitsPerWord + 1;
  active_ = syscall(SYS_set_mempolicy, MPOL_INTERLEAVE, mask.data(), bits) == 0;
}

InterleavedPages::~InterleavedPages() {
  if (active_) syscall(SYS_set_mempolicy, MPOL_DEFAULT, nullptr, 0ul);
}

}  // namespace deepinfer
