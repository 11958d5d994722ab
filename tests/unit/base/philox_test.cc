#include "base/philox.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

TEST(Philox, KnownAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(Philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
  EXPECT_EQ(Philox4x32({100, 1, 0, 0}, {42, 0}),
            (PhiloxBlock{0x05a83501, 0xdc1a36ba, 0x20cd706e, 0x00113d64}));
}

TEST(Philox, UniformStaysInsideTheOpenInterval) {
  EXPECT_GT(UniformFromBits(0), 0.0);
  EXPECT_LT(UniformFromBits(~uint64_t{0}), 1.0);
}

TEST(Philox, BranchZeroKeepsTheSeed) {
  EXPECT_EQ(DeriveSeed(123, 0), 123u);
  EXPECT_NE(DeriveSeed(123, 1), DeriveSeed(123, 2));
}

}  // namespace
}  // namespace deepinfer
