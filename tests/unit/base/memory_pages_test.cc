#include "base/memory_pages.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/process_stats.h"

namespace deepinfer {
namespace {

struct Release {
  void operator()(std::byte* p) const { std::free(p); }
};
using Memory = std::unique_ptr<std::byte, Release>;

constexpr int64_t kMiB = int64_t{1} << 20;

TEST(LargeMemory, IsAlignedForEverySize) {
  for (int64_t size : {int64_t{0}, int64_t{1}, int64_t{65}, kMiB, 8 * kMiB, 9 * kMiB + 1}) {
    const Memory memory(AllocateLargeMemory(size));
    ASSERT_NE(memory, nullptr) << size;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.get()) % 64, 0u) << size;
    std::memset(memory.get(), 1, static_cast<size_t>(size));
  }
}

TEST(LargeMemory, IsNullWhereItIsExhausted) {
  EXPECT_EQ(AllocateLargeMemory(int64_t{1} << 60), nullptr);
}

TEST(LargeMemory, IsResidentBeforeItsFirstUse) {
  constexpr int64_t kSize = 96 * kMiB;
  const int64_t before = ReadResidentMemory().anonymous_bytes;
  const Memory memory(AllocateLargeMemory(kSize));
  ASSERT_NE(memory, nullptr);
  EXPECT_GE(ReadResidentMemory().anonymous_bytes - before, kSize - kMiB);
}

TEST(Prefault, TakesEveryPageAndKeepsTheContents) {
  constexpr size_t kSize = size_t{32} << 20;
  const Memory memory(static_cast<std::byte*>(std::aligned_alloc(64, kSize)));
  ASSERT_NE(memory, nullptr);
  memory.get()[0] = std::byte{7};
  memory.get()[kSize - 1] = std::byte{9};
  const int64_t before = ReadResidentMemory().anonymous_bytes;
  // Odd ends: the pages there are in use already.
  ASSERT_TRUE(PrefaultMemory(memory.get() + 1, static_cast<int64_t>(kSize) - 2));
  // Where the system hands out huge pages, the two writes took some of them.
  EXPECT_GE(ReadResidentMemory().anonymous_bytes - before, static_cast<int64_t>(kSize) - 5 * kMiB);
  EXPECT_EQ(memory.get()[0], std::byte{7});
  EXPECT_EQ(memory.get()[kSize - 1], std::byte{9});
}

TEST(Prefault, HasNothingToDoInsideOnePage) {
  std::byte small[16] = {};
  EXPECT_TRUE(PrefaultMemory(small, 16));
  EXPECT_TRUE(PrefaultMemory(small, 0));
}

TEST(NodeMask, SetsOneBitForEachNode) {
  EXPECT_EQ(NodeMask(std::vector<int>{0, 1}), (std::vector<unsigned long>{3}));
  EXPECT_EQ(NodeMask(std::vector<int>{2, 64}), (std::vector<unsigned long>{4, 1}));
  EXPECT_TRUE(NodeMask({}).empty());
}

TEST(InterleavedPages, DoNothingOnOneNode) {
  const std::vector<int> one = {0};
  EXPECT_FALSE(InterleavedPages(one).active());
  EXPECT_FALSE(InterleavedPages({}).active());
}

}  // namespace
}  // namespace deepinfer
