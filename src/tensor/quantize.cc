#include "tensor/quantize.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "tensor/codecs.h"

namespace deepinfer {
namespace {

// Rounded to fp32 before use: the products below are normative to the bit.
constexpr float kInverseE4m3Max = 1.0f / kE4m3Max;
constexpr float kInverseE2m1Max = 1.0f / kE2m1Max;

// Floors of the group maximum, model.md §11.2-11.4.
constexpr float kFp8AmaxFloor = 1e-4f;
constexpr float kFp4WideAmaxFloor = 6.0f * 0x1p-126f;
constexpr float kFp4NarrowAmaxFloor = 6.0f * 0x1p-9f;

// Largest magnitude as fp32 bits. Integer order equals float order for magnitudes, reduces in SIMD
// without relaxed float rules, and puts infinity and NaN above every finite value.
template <int kGroup>
uint32_t MaxMagnitudeBits(const float* x) {
  uint32_t largest = 0;
  for (int i = 0; i < kGroup; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(x[i]) & kF32AbsMask);
  }
  return largest;
}

// Exponent of the power-of-two scale of a finite group.
int ScaleExponent(uint32_t amax_bits, float floor, float inverse_max) {
  return Pow2Ceil(std::max(std::bit_cast<float>(amax_bits), floor) * inverse_max);
}

// 2^-exponent. Multiplying by it rounds the same real number as dividing by 2^exponent does. The
// exponent is in [-126, 126] for every finite group, so the power is a normal number.
float InversePow2(int exponent) {
  return std::bit_cast<float>(static_cast<uint32_t>(127 - exponent) << 23);
}

void PackE2m1(const uint8_t* codes, int n, uint8_t* packed) {
  for (int i = 0; i < n / 2; ++i) {
    packed[i] = static_cast<uint8_t>(codes[2 * i] | (codes[2 * i + 1] << 4));
  }
}

void DequantizeE2m1Group(const uint8_t* packed, float scale, int n, float* out) {
  for (int i = 0; i < n / 2; ++i) {
    out[2 * i] = E2m1ToFloat(packed[i]) * scale;
    out[2 * i + 1] = E2m1ToFloat(static_cast<uint8_t>(packed[i] >> 4)) * scale;
  }
}

void QuantizeFp8Group(const float* x, uint8_t* codes, uint8_t* scale) {
  const uint32_t amax_bits = MaxMagnitudeBits<kFp8GroupSize>(x);
  if (amax_bits >= kF32InfinityBits) [[unlikely]] {
    *scale = kE8m0Nan;
    std::memset(codes, 0, kFp8GroupSize);
    return;
  }
  const int exponent = ScaleExponent(amax_bits, kFp8AmaxFloor, kInverseE4m3Max);
  const float inverse = InversePow2(exponent);
  *scale = static_cast<uint8_t>(exponent + 127);
  for (int i = 0; i < kFp8GroupSize; ++i) codes[i] = FloatToE4m3(x[i] * inverse);
}

void QuantizeFp4WideGroup(const float* x, uint8_t* packed, uint8_t* scale) {
  const uint32_t amax_bits = MaxMagnitudeBits<kFp4WideGroupSize>(x);
  if (amax_bits >= kF32InfinityBits) [[unlikely]] {
    *scale = kE8m0Nan;
    std::memset(packed, 0, kFp4WideGroupSize / 2);
    return;
  }
  const int exponent = ScaleExponent(amax_bits, kFp4WideAmaxFloor, kInverseE2m1Max);
  const float inverse = InversePow2(exponent);
  *scale = static_cast<uint8_t>(exponent + 127);
  uint8_t codes[kFp4WideGroupSize];
  for (int i = 0; i < kFp4WideGroupSize; ++i) codes[i] = FloatToE2m1(x[i] * inverse);
  PackE2m1(codes, kFp4WideGroupSize, packed);
}

void QuantizeFp4NarrowGroup(const float* x, bool by_reciprocal, uint8_t* packed, uint8_t* scale) {
  const uint32_t amax_bits = MaxMagnitudeBits<kFp4NarrowGroupSize>(x);
  if (amax_bits >= kF32InfinityBits) [[unlikely]] {
    *scale = kE4m3Nan;
    std::memset(packed, 0, kFp4NarrowGroupSize / 2);
    return;
  }
  const float amax = std::max(std::bit_cast<float>(amax_bits), kFp4NarrowAmaxFloor);
  *scale = FloatToE4m3(amax / kE2m1Max);
  const float scale_value = E4m3ToFloat(*scale);
  uint8_t codes[kFp4NarrowGroupSize];
  if (by_reciprocal) {
    const float inverse = 1.0f / scale_value;
    for (int i = 0; i < kFp4NarrowGroupSize; ++i) codes[i] = FloatToE2m1(x[i] * inverse);
  } else {
    for (int i = 0; i < kFp4NarrowGroupSize; ++i) codes[i] = FloatToE2m1(x[i] / scale_value);
  }
  PackE2m1(codes, kFp4NarrowGroupSize, packed);
}

}  // namespace

void QuantizeFp8Group32(const float* x, int n, uint8_t* codes, uint8_t* scales) {
  DI_CHECK(n >= 0 && n % kFp8GroupSize == 0);
  for (int i = 0; i < n; i += kFp8GroupSize) {
    QuantizeFp8Group(x + i, codes + i, scales + i / kFp8GroupSize);
  }
}

void DequantizeFp8Group32(const uint8_t* codes, const uint8_t* scales, int n, float* out) {
  DI_CHECK(n >= 0 && n % kFp8GroupSize == 0);
  for (int i = 0; i < n; ++i) {
    out[i] = E4m3ToFloat(codes[i]) * E8m0ToFloat(scales[i / kFp8GroupSize]);
  }
}

void Fp8Group32QdqInPlace(float* x, int n) {
  DI_CHECK(n >= 0 && n % kFp8GroupSize == 0);
  uint8_t codes[kFp8GroupSize];
  uint8_t scale = 0;
  for (int i = 0; i < n; i += kFp8GroupSize) {
    QuantizeFp8Group(x + i, codes, &scale);
    DequantizeFp8Group32(codes, &scale, kFp8GroupSize, x + i);
  }
}

void QuantizeFp4Group32(const float* x, int n, uint8_t* packed, uint8_t* scales) {
  DI_CHECK(n >= 0 && n % kFp4WideGroupSize == 0);
  for (int i = 0; i < n; i += kFp4WideGroupSize) {
    QuantizeFp4WideGroup(x + i, packed + i / 2, scales + i / kFp4WideGroupSize);
  }
}

void DequantizeFp4Group32(const uint8_t* packed, const uint8_t* scales, int n, float* out) {
  DI_CHECK(n >= 0 && n % kFp4WideGroupSize == 0);
  for (int i = 0; i < n; i += kFp4WideGroupSize) {
    DequantizeE2m1Group(packed + i / 2, E8m0ToFloat(scales[i / kFp4WideGroupSize]),
                        kFp4WideGroupSize, out + i);
  }
}

void Fp4Group32QdqInPlace(float* x, int n) {
  DI_CHECK(n >= 0 && n % kFp4WideGroupSize == 0);
  uint8_t packed[kFp4WideGroupSize / 2];
  uint8_t scale = 0;
  for (int i = 0; i < n; i += kFp4WideGroupSize) {
    QuantizeFp4WideGroup(x + i, packed, &scale);
    DequantizeE2m1Group(packed, E8m0ToFloat(scale), kFp4WideGroupSize, x + i);
  }
}

void QuantizeFp4Group16(const float* x, int n, bool by_reciprocal, uint8_t* packed,
                        uint8_t* scales) {
  DI_CHECK(n >= 0 && n % kFp4NarrowGroupSize == 0);
  for (int i = 0; i < n; i += kFp4NarrowGroupSize) {
    QuantizeFp4NarrowGroup(x + i, by_reciprocal, packed + i / 2, scales + i / kFp4NarrowGroupSize);
  }
}

void DequantizeFp4Group16(const uint8_t* packed, const uint8_t* scales, int n, float* out) {
  DI_CHECK(n >= 0 && n % kFp4NarrowGroupSize == 0);
  for (int i = 0; i < n; i += kFp4NarrowGroupSize) {
    DequantizeE2m1Group(packed + i / 2, E4m3ToFloat(scales[i / kFp4NarrowGroupSize]),
                        kFp4NarrowGroupSize, out + i);
  }
}

void Fp4Group16QdqInPlace(float* x, int n, bool by_reciprocal) {
  DI_CHECK(n >= 0 && n % kFp4NarrowGroupSize == 0);
  uint8_t packed[kFp4NarrowGroupSize / 2];
  uint8_t scale = 0;
  for (int i = 0; i < n; i += kFp4NarrowGroupSize) {
    QuantizeFp4NarrowGroup(x + i, by_reciprocal, packed, &scale);
    DequantizeE2m1Group(packed, E4m3ToFloat(scale), kFp4NarrowGroupSize, x + i);
  }
}

}  // namespace deepinfer
