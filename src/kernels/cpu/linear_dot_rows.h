// Expanded activation rows of the bf16dot family: a header, then blocks of 128 k, each the operands
// of the kernels in the order of use, with zeros behind the end of the row.
// Internal linkage on purpose (kernel_table.h).
// Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/unpack_scalar.h"

namespace deepinfer {
namespace {

template <class Isa>
const std::byte* DotRowBlock(const std::byte* row, int64_t block) {
  return row + kDotHeaderBytes + block * Isa::kBlockBytes;
}

inline bool IsModerateRow(const std::byte* row) {
  return reinterpret_cast<const DotRowHeader*>(row)->is_moderate != 0;
}

// True when no code is NaN and no value outside 2^-41..2^49, so that no product with a moderate
// weight (linear_dot.h) leaves the normal numbers of fp32.
inline bool HasModerateCodes(const uint8_t* codes, const uint8_t* scales, int64_t k) {
  uint8_t outside = 0;
  for (int64_t g = 0; g < k / 32; ++g) {
    outside |= static_cast<uint8_t>(scales[g] - 95) > 72 ? 1 : 0;
  }
  for (int64_t i = 0; i < k; ++i) outside |= (codes[i] & 0x7F) == 0x7F ? 1 : 0;
  return outside == 0;
}

// Operands of one block from 128 bf16 words.
template <class Bf16Form>
void ExpandBf16Block(const uint16_t (&words)[kDotBlock], std::byte* out) {
  using Isa = typename Bf16Form::Isa;
  for (int h = 0; h < Isa::kHalves; ++h) {
    const auto codes = Bf16Form::Load(reinterpret_cast<const uint8_t*>(words), h);
#pragma GCC unroll 8
    for (int s = 0; s < Isa::kSteps; ++s, out += Isa::kRegBytes) {
      Isa::StoreReg(out, Bf16Form::Operand(codes, s));
    }
  }
}

// LinearKernels::expand_bf16.
template <class Bf16Form>
void ExpandBf16(const float* x, int64_t k, std::byte* out) {
  for (int64_t i = 0; i < k; i += kDotBlock, out += Bf16Form::Isa::kBlockBytes) {
    alignas(64) uint16_t words[kDotBlock] = {};
    const int64_t count = k - i < kDotBlock ? k - i : kDotBlock;
    for (int64_t j = 0; j < count; ++j) {
      uint32_t bits;
      std::memcpy(&bits, x + i + j, 4);
      words[j] = static_cast<uint16_t>(bits >> 16);
    }
    ExpandBf16Block<Bf16Form>(words, out);
  }
}

// Any codes and scales.
template <class Bf16Form>
void ExpandExtremeFp8(const uint8_t* codes, const uint8_t* scales, int64_t k, std::byte* out) {
  for (int64_t i = 0; i < k; i += kDotBlock, out += Bf16Form::Isa::kBlockBytes) {
    alignas(64) uint16_t words[kDotBlock] = {};
    const int64_t count = k - i < kDotBlock ? k - i : kDotBlock;
    UnpackScalarBf16(codes + i, scales + i / 32, count, words);
    ExpandBf16Block<Bf16Form>(words, out);
  }
}

// LinearKernels::expand_fp8.
template <class Fp8Form, class Bf16Form>
bool ExpandFp8(const uint8_t* codes, const uint8_t* scales, int64_t k, bool for_codes,
               std::byte* out) {
  using Isa = typename Fp8Form::Isa;
  if (!HasModerateCodes(codes, scales, k)) {
    ExpandExtremeFp8<Bf16Form>(codes, scales, k, out);
    return false;
  }
  for (int64_t i = 0; i < k; i += kDotBlock) {
    alignas(64) uint8_t padded[kDotBlock] = {};
    const uint8_t* bytes = codes + i;
    uint32_t four = kUnitScales;
    if (k - i < kDotBlock) {
      std::memcpy(padded, bytes, static_cast<size_t>(k - i));
      std::memcpy(&four, scales + i / 32, static_cast<size_t>((k - i) / 32));
      bytes = padded;
    } else {
      std::memcpy(&four, scales + i / 32, 4);
    }
    const typename Fp8Form::Scales factors(four);
    for (int h = 0; h < Isa::kHalves; ++h) {
      const auto codes_of_half = Fp8Form::Load(bytes, h);
      typename Isa::Reg v[Isa::kSteps];
#pragma GCC unroll 8
      for (int s = 0; s < Isa::kSteps; ++s) v[s] = Fp8Form::Operand(codes_of_half, s);
      factors.Fold(h, v);
#pragma GCC unroll 8
      for (int s = 0; s < Isa::kSteps; ++s, out += Isa::kRegBytes) {
        Isa::StoreReg(out, Isa::RowValue(v[s], for_codes));
      }
    }
  }
  return true;
}

}  // namespace
}  // namespace deepinfer
