#include "tensor/codecs.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace deepinfer {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

uint32_t Bits(float x) { return std::bit_cast<uint32_t>(x); }
float FromBits(uint32_t u) { return std::bit_cast<float>(u); }

// Value of an E4M3FN code from the definition of the format, in double.
double E4m3ByDefinition(int code) {
  const int exponent = (code >> 3) & 15;
  const int mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return std::nan("");
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (code & 128) != 0 ? -magnitude : magnitude;
}

// Nearest code of a monotone positive grid by exhaustive search, ties to the even code.
template <typename ValueOf>
int NearestCode(double magnitude, int num_codes, ValueOf value_of) {
  int best = 0;
  for (int code = 1; code < num_codes; ++code) {
    const double distance = std::abs(value_of(code) - magnitude);
    const double best_distance = std::abs(value_of(best) - magnitude);
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) best = code;
  }
  return best;
}

TEST(Bf16Test, EveryCodeRoundTripsAndNanBecomesQuiet) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const uint16_t bits = static_cast<uint16_t>(code);
    const float value = Bf16ToFloat(bits);
    const bool is_nan = (code & 0x7FFF) > 0x7F80;
    ASSERT_EQ(std::isnan(value), is_nan) << code;
    ASSERT_EQ(FloatToBf16(value), is_nan ? (code | 0x40) : code) << code;
  }
}

TEST(Bf16Test, EveryMidpointGoesToTheEvenCode) {
  for (uint32_t code = 0; code < 0x7F80; ++code) {
    for (const uint32_t sign : {0u, 0x8000u}) {
      const uint32_t midpoint = ((code | sign) << 16) | 0x8000u;
      const uint32_t even = (code % 2 == 0 ? code : code + 1) | sign;
      ASSERT_EQ(FloatToBf16(FromBits(midpoint)), even) << code;
      ASSERT_EQ(FloatToBf16(FromBits(midpoint - 1)), code | sign) << code;
      ASSERT_EQ(FloatToBf16(FromBits(midpoint + 1)), (code + 1) | sign) << code;
    }
  }
}

TEST(Bf16Test, EdgesOfTheRange) {
  EXPECT_EQ(FloatToBf16(std::numeric_limits<float>::max()), 0x7F80);
  EXPECT_EQ(FloatToBf16(-kInf), 0xFF80);
  EXPECT_EQ(FloatToBf16(-0.0f), 0x8000);
  // A signalling NaN whose payload sits in the dropped half must not turn into infinity.
  EXPECT_EQ(FloatToBf16(FromBits(0x7F800001)), 0x7FC0);
  EXPECT_EQ(FloatToBf16(FromBits(0xFFFFFFFF)), 0xFFFF);
  EXPECT_EQ(RoundToBf16(1.00390625f), 1.0f);
}

TEST(E4m3Test, TableFollowsTheDefinition) {
  for (int code = 0; code < 256; ++code) {
    const double expected = E4m3ByDefinition(code);
    const float value = E4m3ToFloat(static_cast<uint8_t>(code));
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << code;
    } else {
      ASSERT_EQ(Bits(value), Bits(static_cast<float>(expected))) << code;
    }
  }
}

TEST(E4m3Test, EveryCodeRoundTrips) {
  for (int code = 0; code < 256; ++code) {
    ASSERT_EQ(FloatToE4m3(E4m3ToFloat(static_cast<uint8_t>(code))), code);
  }
}

TEST(E4m3Test, EveryMidpointGoesToTheEvenCodeAndNeighboursToTheNearest) {
  for (int code = 0; code < 126; ++code) {
    const float midpoint =
        static_cast<float>((E4m3ByDefinition(code) + E4m3ByDefinition(code + 1)) / 2);
    const int even = code % 2 == 0 ? code : code + 1;
    for (const int sign : {0, 128}) {
      const float s = sign == 0 ? 1.0f : -1.0f;
      ASSERT_EQ(FloatToE4m3(s * midpoint), even | sign);
      ASSERT_EQ(FloatToE4m3(s * std::nextafter(midpoint, 0.0f)), code | sign);
      ASSERT_EQ(FloatToE4m3(s * std::nextafter(midpoint, kInf)), (code + 1) | sign);
    }
  }
}

TEST(E4m3Test, AgreesWithSearchOnEveryBf16) {
  for (uint32_t code = 0; code <= 0x7F80; ++code) {
    const float x = Bf16ToFloat(static_cast<uint16_t>(code));
    const int expected = x >= 448.0f ? 126 : NearestCode(x, 127, E4m3ByDefinition);
    ASSERT_EQ(FloatToE4m3(x), expected) << x;
    ASSERT_EQ(FloatToE4m3(-x), expected | 128) << x;
  }
}

TEST(E4m3Test, SaturatesAndKeepsNan) {
  EXPECT_EQ(FloatToE4m3(kInf), 0x7E);
  EXPECT_EQ(FloatToE4m3(-1e30f), 0xFE);
  EXPECT_EQ(FloatToE4m3(464.0f), 0x7E);
  EXPECT_EQ(FloatToE4m3(kNan) & 0x7F, 0x7F);
  EXPECT_EQ(FloatToE4m3(-0.0f), 0x80);
}

TEST(E2m1Test, GridAndTies) {
  const float grid[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (int code = 0; code < 8; ++code) {
    EXPECT_EQ(E2m1ToFloat(static_cast<uint8_t>(code)), grid[code]);
    EXPECT_EQ(Bits(E2m1ToFloat(static_cast<uint8_t>(code | 8))), Bits(-grid[code]));
    EXPECT_EQ(FloatToE2m1(grid[code]), code);
    EXPECT_EQ(FloatToE2m1(-grid[code]), code | 8);
  }
  // Values, not codes: 0.25 -> 0, 0.75 -> 1, 1.25 -> 1, 1.75 -> 2, 2.5 -> 2, 3.5 -> 4, 5 -> 4.
  const float ties[7][2] = {{0.25f, 0}, {0.75f, 1}, {1.25f, 1}, {1.75f, 2},
                            {2.5f, 2},  {3.5f, 4},  {5, 4}};
  for (const auto& tie : ties) {
    EXPECT_EQ(E2m1ToFloat(FloatToE2m1(tie[0])), tie[1]);
    EXPECT_EQ(Bits(E2m1ToFloat(FloatToE2m1(-tie[0]))), Bits(-tie[1]));
  }
}

TEST(E2m1Test, AgreesWithSearchOnEveryBf16) {
  const auto value_of = [](int code) {
    return static_cast<double>(E2m1ToFloat(static_cast<uint8_t>(code)));
  };
  for (uint32_t code = 0; code <= 0x7F80; ++code) {
    const float x = Bf16ToFloat(static_cast<uint16_t>(code));
    const int expected = x >= 6.0f ? 7 : NearestCode(x, 8, value_of);
    ASSERT_EQ(FloatToE2m1(x), expected) << x;
    ASSERT_EQ(FloatToE2m1(-x), expected | 8) << x;
  }
}

TEST(E2m1Test, NeighboursOfTies) {
  for (const float tie : {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f}) {
    const int below = FloatToE2m1(std::nextafter(tie, 0.0f));
    EXPECT_EQ(FloatToE2m1(std::nextafter(tie, kInf)), below + 1) << tie;
  }
}

TEST(E2m1Test, NanGivesZeroAndHighNibbleIsIgnored) {
  EXPECT_EQ(FloatToE2m1(kNan) & 7, 0);
  EXPECT_EQ(E2m1ToFloat(0xF3), 1.5f);
}

TEST(E8m0Test, EveryByteIsAPowerOfTwoOrNan) {
  for (int byte = 0; byte < 255; ++byte) {
    const float value = E8m0ToFloat(static_cast<uint8_t>(byte));
    ASSERT_EQ(static_cast<double>(value), std::ldexp(1.0, byte - 127)) << byte;
  }
  EXPECT_TRUE(std::isnan(E8m0ToFloat(255)));
}

TEST(Pow2CeilTest, SmallestPowerNotBelow) {
  for (int exponent = -126; exponent <= 126; ++exponent) {
    const float power = std::ldexp(1.0f, exponent);
    ASSERT_EQ(Pow2Ceil(power), exponent);
    ASSERT_EQ(Pow2Ceil(std::nextafter(power, kInf)), exponent + 1);
    ASSERT_EQ(Pow2Ceil(std::nextafter(power * 2, 0.0f)), exponent + 1);
  }
}

TEST(CodecsTest, AreUsableInConstantExpressions) {
  static_assert(FloatToE4m3(448.0f) == 0x7E);
  static_assert(FloatToE2m1(-6.0f) == 15);
  static_assert(FloatToBf16(1.0f) == 0x3F80);
  static_assert(Pow2Ceil(1.5f) == 1);
}

}  // namespace
}  // namespace deepinfer
