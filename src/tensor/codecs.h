// Scalar codecs of the small float formats: BF16, FP8 E4M3FN, FP4 E2M1 and UE8M0 (model.md §11).
// Everything is branch-free or table-driven, so loops over it vectorise, and depends only on IEEE
// operations in the default rounding mode, so every build gives the same bits.
// Thread rule: pure functions.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace deepinfer {

inline constexpr float kE4m3Max = 448.0f;
inline constexpr float kE2m1Max = 6.0f;
inline constexpr uint8_t kE4m3Nan = 0x7F;
inline constexpr uint8_t kE8m0Nan = 0xFF;
inline constexpr uint32_t kF32AbsMask = 0x7FFFFFFFu;
inline constexpr uint32_t kF32InfinityBits = 0x7F800000u;

constexpr float Bf16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Round to nearest even. Overflow gives infinity; a NaN keeps sign and upper payload and is quiet.
constexpr uint16_t FloatToBf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
  const uint32_t quiet_nan = (u >> 16) | 0x40u;
  return static_cast<uint16_t>((u & kF32AbsMask) > kF32InfinityBits ? quiet_nan : rounded);
}

// x rounded to BF16, as a float.
constexpr float RoundToBf16(float x) { return Bf16ToFloat(FloatToBf16(x)); }

namespace internal {

constexpr std::array<float, 256> MakeE4m3Table() {
  std::array<float, 256> table{};
  for (int code = 0; code < 256; ++code) {
    const int exponent = (code >> 3) & 15;
    const int mantissa = code & 7;
    float magnitude = 0;
    if ((code & 0x7F) == kE4m3Nan) {
      magnitude = std::numeric_limits<float>::quiet_NaN();
    } else if (exponent == 0) {
      magnitude = static_cast<float>(mantissa) * 0x1p-9f;
    } else {
      // Bias 7 against 127 of fp32.
      magnitude = std::bit_cast<float>((static_cast<uint32_t>(exponent + 120) << 23) |
                                       (static_cast<uint32_t>(mantissa) << 20));
    }
    const uint32_t sign = (code & 0x80) != 0 ? 0x80000000u : 0u;
    table[static_cast<size_t>(code)] =
        std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  return table;
}

}  // namespace internal

// Value of every E4M3FN code; NaN at 0x7F and 0xFF.
inline constexpr std::array<float, 256> kE4m3Table = internal::MakeE4m3Table();

constexpr float E4m3ToFloat(uint8_t code) { return kE4m3Table[code]; }

// Round to nearest even, sign of zero kept. Magnitudes above 448, infinity included, saturate at
// 448, so a clamp to +-448 before the call changes nothing. NaN gives 0x7F or 0xFF.
constexpr uint8_t FloatToE4m3(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint32_t magnitude_bits = u & kF32AbsMask;
  const uint32_t sign = (u >> 24) & 0x80u;
  constexpr uint32_t kMaxBits = std::bit_cast<uint32_t>(kE4m3Max);
  const uint32_t clamped = magnitude_bits < kMaxBits ? magnitude_bits : kMaxBits;
  // Normal codes: drop 20 mantissa bits with RNE, then change the bias from 127 to 7.
  const uint32_t normal = ((clamped + 0x7FFFFu + ((clamped >> 20) & 1u)) >> 20) - (120u << 3);
  // Subnormal codes: an ulp of 2^14 is 2^-9, the code step, so the addition itself rounds.
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(clamped) + 0x1p14f) -
                             std::bit_cast<uint32_t>(0x1p14f);
  const uint32_t finite = clamped < std::bit_cast<uint32_t>(0x1p-6f) ? subnormal : normal;
  const uint32_t code = magnitude_bits > kF32InfinityBits ? kE4m3Nan : finite;
  return static_cast<uint8_t>(code | sign);
}

// Value of the 16 E2M1 codes; code 8 is -0.
inline constexpr std::array<float, 16> kE2m1Table = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,
                                                     4.0f,  6.0f,  -0.0f, -0.5f, -1.0f, -1.5f,
                                                     -2.0f, -3.0f, -4.0f, -6.0f};

// Only the low nibble of code is read.
constexpr float E2m1ToFloat(uint8_t code) { return kE2m1Table[code & 15u]; }

// Round to nearest, ties to the even code, sign of zero kept. Magnitudes above 6, infinity
// included, saturate at 6. The format has no NaN: a NaN gives a zero of its sign.
constexpr uint8_t FloatToE2m1(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const float a = std::bit_cast<float>(u & kF32AbsMask);
  // > keeps a tie at the lower code, >= lifts it to the upper one: whichever is even.
  const int magnitude = static_cast<int>(a > 0.25f) + static_cast<int>(a >= 0.75f) +
                        static_cast<int>(a > 1.25f) + static_cast<int>(a >= 1.75f) +
                        static_cast<int>(a > 2.5f) + static_cast<int>(a >= 3.5f) +
                        static_cast<int>(a > 5.0f);
  return static_cast<uint8_t>(static_cast<uint32_t>(magnitude) | ((u >> 28) & 8u));
}

// 2^(byte - 127); byte 0 is the fp32 subnormal 2^-127, byte 255 is NaN.
constexpr float E8m0ToFloat(uint8_t byte) {
  if (byte == kE8m0Nan) return std::numeric_limits<float>::quiet_NaN();
  const uint32_t bits = byte == 0 ? 0x00400000u : static_cast<uint32_t>(byte) << 23;
  return std::bit_cast<float>(bits);
}

// Exponent e with 2^e the smallest power of two >= x, for normal x > 0 (model.md §11.1). A bit
// operation: exponent field - 127, plus 1 when the mantissa is not zero.
constexpr int Pow2Ceil(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  return static_cast<int>((u >> 23) & 0xFFu) - 127 + static_cast<int>((u & 0x7FFFFFu) != 0);
}

}  // namespace deepinfer
