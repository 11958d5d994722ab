// Stored cache rows as fp32, for every instruction set. Internal linkage on purpose
// (kernel_table.h).
// Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/small_floats.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/kv_view.h"
#include "tensor/codecs.h"

namespace deepinfer {
namespace {

inline const uint8_t* Bytes(const std::byte* p) { return reinterpret_cast<const uint8_t*>(p); }

template <class Isa>
void CopyFloats(const std::byte* row, int64_t n, float* out) {
  const float* src = reinterpret_cast<const float*>(row);
  ForEachVector(n, [=](int64_t i, int count) {
    StoreUpTo16<Isa>(out + i, LoadUpTo16<Isa>(src + i, count), count);
  });
}

// n E4M3 codes, then n/32 UE8M0 scales.
template <class Isa>
void LoadWindowKey(KvFormat format, const std::byte* row, int64_t n, float* out) {
  if (format == KvFormat::kFloat32) return CopyFloats<Isa>(row, n, out);
  const uint8_t* codes = Bytes(row);
  for (int64_t i = 0; i < n; i += 32) {
    const typename Isa::Float scale = Isa::SetFloat(ScaleValue(codes[n + i / 32]));
#pragma GCC unroll 4
    for (int64_t j = i; j < i + 32; j += Isa::kLanes) {
      Isa::StoreFloat(out + j, Isa::Multiply(LoadE4m3<Isa>(codes + j), scale));
    }
  }
}

// n/2 bytes of E2M1 pairs, then n/16 E4M3 scales.
template <class Isa>
void LoadCompressedKey(KvFormat format, const std::byte* row, int64_t n, float* out) {
  if (format == KvFormat::kFloat32) return CopyFloats<Isa>(row, n, out);
  const uint8_t* codes = Bytes(row);
  for (int64_t i = 0; i < n; i += 16) {
    const typename Isa::Vec scale = Isa::Set1(kE4m3Table[codes[n / 2 + i / 16]]);
    Isa::Store(out + i, Isa::Mul(Isa::LoadE2m1(codes + i / 2), scale));
  }
}

// n/2 bytes of E2M1 pairs; n/32 UE8M0 scales apart.
template <class Isa>
void LoadIndexKeyRow(KvFormat format, const std::byte* row, const std::byte* scales, int64_t n,
                     float* out) {
  if (format == KvFormat::kFloat32) return CopyFloats<Isa>(row, n, out);
  const uint8_t* codes = Bytes(row);
  for (int64_t i = 0; i < n; i += 32) {
    const typename Isa::Vec scale = Isa::Set1(ScaleValue(Bytes(scales)[i / 32]));
    Isa::Store(out + i, Isa::Mul(Isa::LoadE2m1(codes + i / 2), scale));
    Isa::Store(out + i + 16, Isa::Mul(Isa::LoadE2m1(codes + i / 2 + 8), scale));
  }
}

}  // namespace
}  // namespace deepinfer
