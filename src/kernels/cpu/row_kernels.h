// Norms, hyper-connections, SwiGLU and the Engram gate on one row, for every instruction set.
// Internal linkage on purpose (kernel_table.h).
// Thread rule: pure functions.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/vector_math.h"

namespace deepinfer {
namespace {

inline float SquareRoot(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }

template <class Isa>
float InverseRms(const float* x, int64_t n, float eps) {
  return 1.0f / SquareRoot(VectorDot<Isa>(x, x, n) / static_cast<float>(n) + eps);
}

template <class Isa>
void RmsNormRow(const float* x, const uint16_t* w, int64_t dim, float eps, float* out) {
  const typename Isa::Vec r = Isa::Set1(InverseRms<Isa>(x, dim, eps));
  ForEachVector(dim, [=](int64_t d, int n) {
    const typename Isa::Vec scaled = Isa::Mul(LoadUpTo16<Isa>(x + d, n), r);
    StoreUpTo16<Isa>(out + d, Isa::Mul(LoadBf16UpTo16<Isa>(w + d, n), scaled), n);
  });
}

template <class Isa>
void HcPreRow(const float* h, const float* pre, int32_t copies, int64_t dim, int64_t begin,
              int64_t end, float* out) {
  ForEachVector(end - begin, [=](int64_t offset, int n) {
    const int64_t d = begin + offset;
    typename Isa::Vec sum = Isa::Zero();
    for (int32_t c = 0; c < copies; ++c) {
      sum = Isa::Add(sum, Isa::Mul(Isa::Set1(pre[c]), LoadUpTo16<Isa>(h + c * dim + d, n)));
    }
    StoreUpTo16<Isa>(out + d, sum, n);
  });
}

template <class Isa>
void HcPostRow(const float* x, const float* h, const float* post, const float* comb, int32_t copies,
               int64_t dim, int64_t begin, int64_t end, float* out) {
  ForEachVector(end - begin, [=](int64_t offset, int n) {
    const int64_t d = begin + offset;
    const typename Isa::Vec value = LoadUpTo16<Isa>(x + d, n);
    for (int32_t k = 0; k < copies; ++k) {
      typename Isa::Vec sum = Isa::Zero();
      for (int32_t j = 0; j < copies; ++j) {
        sum = Isa::Add(
            sum, Isa::Mul(Isa::Set1(comb[j * copies + k]), LoadUpTo16<Isa>(h + j * dim + d, n)));
      }
      StoreUpTo16<Isa>(out + k * dim + d, Isa::Add(Isa::Mul(Isa::Set1(post[k]), value), sum), n);
    }
  });
}

template <class Isa>
void SwigluRow(int64_t n, float weight, float limit, const float* up, float* gate) {
  using Vec = typename Isa::Vec;
  const Vec high = Isa::Set1(limit), low = Isa::Set1(-limit), w = Isa::Set1(weight);
  ForEachVector(n, [=](int64_t i, int count) {
    // The bound is the first operand, so that a NaN passes.
    const Vec u = Isa::Min(high, Isa::Max(low, LoadUpTo16<Isa>(up + i, count)));
    const Vec g = Isa::Min(high, LoadUpTo16<Isa>(gate + i, count));
    StoreUpTo16<Isa>(gate + i, Isa::Mul(w, Isa::Mul(VectorSilu<Isa>(g), u)), count);
  });
}

template <class Isa>
void RoundBf16Row(int64_t n, float* x) {
  ForEachVector(n, [=](int64_t i, int count) {
    StoreUpTo16<Isa>(x + i, Isa::RoundBf16(LoadUpTo16<Isa>(x + i, count)), count);
  });
}

template <class Isa>
void AddRow(int64_t n, const float* y, float* sum) {
  ForEachVector(n, [=](int64_t i, int count) {
    StoreUpTo16<Isa>(
        sum + i, Isa::Add(LoadUpTo16<Isa>(sum + i, count), LoadUpTo16<Isa>(y + i, count)), count);
  });
}

template <class Isa>
void EngramGateRow(const float* key, const float* value, const uint16_t* q_weight,
                   const uint16_t* k_weight, int64_t dim, float rms_eps, float* h) {
  using Vec = typename Isa::Vec;
  Vec sum = Isa::Zero();
  ForEachVector(dim, [=, &sum](int64_t i, int n) {
    const Vec weight =
        Isa::Mul(LoadBf16UpTo16<Isa>(q_weight + i, n), LoadBf16UpTo16<Isa>(k_weight + i, n));
    sum = Isa::FmaPartial(Isa::Mul(LoadUpTo16<Isa>(h + i, n), weight), LoadUpTo16<Isa>(key + i, n),
                          sum, n);
  });
  float d = Isa::LaneSum(sum);
  d *= InverseRms<Isa>(h, dim, rms_eps);
  d *= InverseRms<Isa>(key, dim, rms_eps);
  d *= 1.0f / SquareRoot(static_cast<float>(dim));
  const float magnitude = __builtin_fabsf(d);
  const float root = SquareRoot(magnitude < 1e-6f ? 1e-6f : magnitude);
  const Vec one = Isa::Set1(1.0f);
  const Vec negated = Isa::Set1(-__builtin_copysignf(root, d));
  const Vec gate = Isa::Div(one, Isa::Add(one, VectorExp<Isa>(negated)));
  ForEachVector(dim, [=](int64_t i, int n) {
    StoreUpTo16<Isa>(
        h + i, Isa::Add(LoadUpTo16<Isa>(h + i, n), Isa::Mul(gate, LoadUpTo16<Isa>(value + i, n))),
        n);
  });
}

template <class Isa>
void ExpRow(int64_t n, const float* x, float* out) {
  ForEachVector(n, [=](int64_t i, int count) {
    StoreUpTo16<Isa>(out + i, VectorExp<Isa>(LoadUpTo16<Isa>(x + i, count)), count);
  });
}

template <class Isa>
void FillRows(RowKernels* kernels) {
  kernels->dot_matrix = DotMatrix<Isa>;
  kernels->rms_norm = RmsNormRow<Isa>;
  kernels->hc_pre = HcPreRow<Isa>;
  kernels->hc_post = HcPostRow<Isa>;
  kernels->swiglu = SwigluRow<Isa>;
  kernels->round_bf16 = RoundBf16Row<Isa>;
  kernels->add = AddRow<Isa>;
  kernels->engram_gate = EngramGateRow<Isa>;
  kernels->exp = ExpRow<Isa>;
}

}  // namespace
}  // namespace deepinfer
