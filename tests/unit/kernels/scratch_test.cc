// Work memory of the CPU backend: growth, reuse, and use after a request that could not be served.

#include "kernels/cpu/scratch.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <new>

namespace deepinfer {
namespace {

TEST(Scratch, GrowsAndIsKept) {
  Scratch<float> scratch;
  float* small = scratch.Get(100);
  ASSERT_NE(small, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(small) % 64, 0u);
  EXPECT_EQ(scratch.Get(7), small);
  float* large = scratch.Get(1 << 20);
  large[0] = large[(1 << 20) - 1] = 1.0f;
  EXPECT_EQ(scratch.Get(100), large);
}

// Sanitizers end the process when an allocation cannot be served.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(Scratch, ServesSmallerRequestsAfterOneThatFailed) {
  Scratch<float> scratch;
  scratch.Get(1000);
  EXPECT_THROW(scratch.Get(int64_t{1} << 50), std::bad_alloc);
  float* p = scratch.Get(1000);
  ASSERT_NE(p, nullptr);
  p[0] = p[999] = 1.0f;
}
#endif

}  // namespace
}  // namespace deepinfer
