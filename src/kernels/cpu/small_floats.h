// Decoding of E4M3 and UE8M0 on 32-bit lanes: the fp32 values of tensor/codecs.h for every byte.
// Internal linkage on purpose (kernel_table.h).
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <cstring>

namespace deepinfer {
namespace {

inline constexpr uint32_t kQuietNanBits = 0x7FC00000u;

// 2^(byte - 127); NaN for 255.
inline float ScaleValue(uint8_t byte) {
  uint32_t bits = static_cast<uint32_t>(byte) << 23;
  if (byte == 0) bits = 0x00400000u;
  if (byte == 0xFF) bits = kQuietNanBits;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// The same for byte `index` of every lane.
template <class Isa>
typename Isa::Float DecodeScale(typename Isa::Int v, int index) {
  const typename Isa::Int byte = Isa::And(Isa::ShiftRight(v, 8 * index), 0xFFu);
  typename Isa::Float scale = Isa::AsFloat(Isa::ShiftLeft(byte, 23));
  scale = Isa::SelectEqual(byte, 0, 0x00400000u, scale);
  return Isa::SelectEqual(byte, 0xFF, kQuietNanBits, scale);
}

// Value of the E4M3 code in byte `index` of every lane. The seven magnitude bits take the place of
// an fp32 exponent and mantissa whose bias is 120 too small. Subnormal codes get the exponent of
// the smallest normal one and lose its leading 1 by an exact subtraction, which keeps fp32
// denormals, slow on some CPUs, out of the arithmetic.
template <class Isa>
typename Isa::Float DecodeE4m3(typename Isa::Int v, int index) {
  using Float = typename Isa::Float;
  using Int = typename Isa::Int;
  const Int top = Isa::ShiftLeft(v, 24 - 8 * index);
  const Int magnitude = Isa::And(Isa::ShiftRight(top, 4), 0x7F00000u);
  const Float normal = Isa::AsFloat(Isa::AddInt(magnitude, 120u << 23));
  const Float subnormal =
      Isa::Subtract(Isa::AsFloat(Isa::AddInt(magnitude, 121u << 23)), Isa::SetFloat(0x1p-6f));
  Float value = Isa::SelectBelow(magnitude, 1u << 23, subnormal, normal);
  value = Isa::SelectEqual(magnitude, 0x7Fu << 20, kQuietNanBits, value);
  return Isa::Or(value, Isa::And(top, 0x80000000u));
}

// kLanes E4M3 codes at p.
template <class Isa>
typename Isa::Float LoadE4m3(const uint8_t* p) {
  return DecodeE4m3<Isa>(Isa::LoadWidened(p), 0);
}

}  // namespace
}  // namespace deepinfer
