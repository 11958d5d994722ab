// Elementary functions of det_math.h on 16 lanes: the same operations in the same order, hence
// the same bits. Internal linkage on purpose (kernel_table.h).
// Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "base/det_math.h"

namespace deepinfer {
namespace {

template <class Isa>
typename Isa::Vec VectorExp(typename Isa::Vec x) {
  using Vec = typename Isa::Vec;
  const Vec magic = Isa::Set1(det_internal::kRoundMagicF);
  const Vec n = Isa::Sub(Isa::Fma(x, Isa::Set1(det_internal::kLog2eF), magic), magic);
  Vec r = Isa::Fma(n, Isa::Set1(-det_internal::kLn2HiF), x);
  r = Isa::Fma(n, Isa::Set1(-det_internal::kLn2LoF), r);
  Vec p = Isa::Set1(det_internal::kExpPoly[7]);
#pragma GCC unroll 8
  for (int i = 6; i >= 0; --i) p = Isa::Fma(p, r, Isa::Set1(det_internal::kExpPoly[i]));
  const Vec y = Isa::ScalePow2(p, n);
  const Vec high = Isa::SelectGreater(x, det_internal::kExpMaxF, Isa::Set1(__builtin_inff()), y);
  return Isa::SelectLess(x, det_internal::kExpMinF, Isa::Zero(), high);
}

// x / (1 + e^-x).
template <class Isa>
typename Isa::Vec VectorSilu(typename Isa::Vec x) {
  const typename Isa::Vec negated = Isa::Sub(Isa::Set1(-0.0f), x);
  return Isa::Div(x, Isa::Add(Isa::Set1(1.0f), VectorExp<Isa>(negated)));
}

// Calls fn(offset, count) for every 16 of n elements, count < 16 only at the end.
template <class Fn>
void ForEachVector(int64_t n, Fn&& fn) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) fn(i, 16);
  if (i < n) fn(i, static_cast<int>(n - i));
}

template <class Isa>
typename Isa::Vec LoadUpTo16(const float* p, int n) {
  return n == 16 ? Isa::Load(p) : Isa::LoadPartial(p, n);
}
template <class Isa>
void StoreUpTo16(float* p, typename Isa::Vec v, int n) {
  if (n == 16) {
    Isa::Store(p, v);
  } else {
    Isa::StorePartial(p, v, n);
  }
}
template <class Isa>
typename Isa::Vec LoadBf16UpTo16(const uint16_t* p, int n) {
  if (n == 16) return Isa::LoadBf16(p);
  uint16_t padded[16] = {};
  for (int i = 0; i < n; ++i) padded[i] = p[i];
  return Isa::LoadBf16(padded);
}

// Lane16 sum of a[k]·b[k].
template <class Isa>
float VectorDot(const float* a, const float* b, int64_t n) {
  typename Isa::Vec sum = Isa::Zero();
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) sum = Isa::Fma(Isa::Load(a + i), Isa::Load(b + i), sum);
  if (i < n) {
    const int left = static_cast<int>(n - i);
    sum = Isa::FmaPartial(Isa::LoadPartial(a + i, left), Isa::LoadPartial(b + i, left), sum, left);
  }
  return Isa::LaneSum(sum);
}

// Lane16 dots of kA rows of a with kB rows of b.
template <class Isa, int kA, int kB>
void DotBlock(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t n,
              float* out, int64_t out_stride) {
  using Vec = typename Isa::Vec;
  Vec sum[kA][kB];
#pragma GCC unroll 4
  for (int i = 0; i < kA; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kB; ++j) sum[i][j] = Isa::Zero();
  }
  int64_t k = 0;
  for (; k + 16 <= n; k += 16) {
    Vec right[kB];
#pragma GCC unroll 4
    for (int j = 0; j < kB; ++j) right[j] = Isa::Load(b + j * b_stride + k);
#pragma GCC unroll 4
    for (int i = 0; i < kA; ++i) {
      const Vec left = Isa::Load(a + i * a_stride + k);
#pragma GCC unroll 4
      for (int j = 0; j < kB; ++j) sum[i][j] = Isa::Fma(left, right[j], sum[i][j]);
    }
  }
  const int rest = static_cast<int>(n - k);
#pragma GCC unroll 4
  for (int i = 0; i < kA; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kB; ++j) {
      if (rest > 0) {
        sum[i][j] = Isa::FmaPartial(Isa::LoadPartial(a + i * a_stride + k, rest),
                                    Isa::LoadPartial(b + j * b_stride + k, rest), sum[i][j], rest);
      }
      out[i * out_stride + j] = Isa::LaneSum(sum[i][j]);
    }
  }
}

// out[i · out_stride + j] = a_i · b_j. The block shape fits the registers of the level.
template <class Isa>
void DotMatrix(const float* a, int64_t a_stride, int64_t num_a, const float* b, int64_t b_stride,
               int64_t num_b, int64_t n, float* out, int64_t out_stride) {
  constexpr int kSide = Isa::kLanes == 16 ? 4 : 2;
  int64_t i = 0;
  for (; i + kSide <= num_a; i += kSide) {
    const float* left = a + i * a_stride;
    float* row = out + i * out_stride;
    int64_t j = 0;
    for (; j + kSide <= num_b; j += kSide) {
      DotBlock<Isa, kSide, kSide>(left, a_stride, b + j * b_stride, b_stride, n, row + j,
                                  out_stride);
    }
    for (; j < num_b; ++j) {
      DotBlock<Isa, kSide, 1>(left, a_stride, b + j * b_stride, b_stride, n, row + j, out_stride);
    }
  }
  for (; i < num_a; ++i) {
    const float* left = a + i * a_stride;
    float* row = out + i * out_stride;
    int64_t j = 0;
    for (; j + kSide <= num_b; j += kSide) {
      DotBlock<Isa, 1, kSide>(left, a_stride, b + j * b_stride, b_stride, n, row + j, out_stride);
    }
    for (; j < num_b; ++j) {
      DotBlock<Isa, 1, 1>(left, a_stride, b + j * b_stride, b_stride, n, row + j, out_stride);
    }
  }
}

}  // namespace
}  // namespace deepinfer
