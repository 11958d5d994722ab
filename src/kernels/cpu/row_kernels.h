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

// v[i] = v[i]·cos[i] + v[i ^ 1]·sin[i] for n channels of one head, n even: the rotation of
// Operators::Rope with every cosine twice and the sine negated in front of it.
template <class Isa>
void RotateRow(const float* cos, const float* sin, int64_t n, bool round, float* v) {
  ForEachVector(n, [=](int64_t i, int count) {
    const typename Isa::Vec x = LoadUpTo16<Isa>(v + i, count);
    const typename Isa::Vec rotated =
        Isa::Add(Isa::Mul(x, LoadUpTo16<Isa>(cos + i, count)),
                 Isa::Mul(Isa::SwapPairs(x), LoadUpTo16<Isa>(sin + i, count)));
    StoreUpTo16<Isa>(v + i, round ? Isa::RoundBf16(rotated) : rotated, count);
  });
}

template <class Isa>
void CompressPairRow(const float* kv0, const float* g0, const float* kv1, const float* g1,
                     int64_t n, float* latent) {
  using Vec = typename Isa::Vec;
  ForEachVector(n, [=](int64_t i, int count) {
    const Vec gate0 = LoadUpTo16<Isa>(g0 + i, count), gate1 = LoadUpTo16<Isa>(g1 + i, count);
    // The first gate where one of them is a NaN.
    const Vec largest = Isa::Max(gate1, gate0);
    const Vec e0 = VectorExp<Isa>(Isa::Sub(gate0, largest));
    const Vec e1 = VectorExp<Isa>(Isa::Sub(gate1, largest));
    const Vec sum = Isa::Add(e0, e1);
    const Vec part0 = Isa::Mul(Isa::Div(e0, sum), LoadUpTo16<Isa>(kv0 + i, count));
    const Vec part1 = Isa::Mul(Isa::Div(e1, sum), LoadUpTo16<Isa>(kv1 + i, count));
    StoreUpTo16<Isa>(latent + i, Isa::Add(part0, part1), count);
  });
}

// Whether every one of n values is finite: no exponent of ones.
inline bool AllFiniteRow(int64_t n, const float* x) {
  const __m256i exponent = _mm256_set1_epi32(0x7F800000);
  __m256i any = _mm256_setzero_si256();
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i));
    any = _mm256_or_si256(any, _mm256_cmpeq_epi32(_mm256_and_si256(bits, exponent), exponent));
  }
  bool finite = _mm256_testz_si256(any, any) != 0;
  for (; i < n; ++i) finite = finite && x[i] - x[i] == 0.0f;
  return finite;
}

// The rows of a 4 x 4 matrix.
struct Rows4 {
  __m128 r[4];
};

inline Rows4 Transposed(Rows4 m) {
  _MM_TRANSPOSE4_PS(m.r[0], m.r[1], m.r[2], m.r[3]);
  return m;
}

// Every column over its sum, rows added in ascending order, plus eps.
inline Rows4 NormalizeColumns(Rows4 m, __m128 eps) {
  const __m128 sum = _mm_add_ps(_mm_add_ps(_mm_add_ps(m.r[0], m.r[1]), m.r[2]), m.r[3]);
  const __m128 divisor = _mm_add_ps(sum, eps);
  for (__m128& row : m.r) row = _mm_div_ps(row, divisor);
  return m;
}

// The Sinkhorn iterations of four copies (docs/model.md §5) after the row softmax, in place: a
// column step, then iters - 1 times a row step and a column step.
inline void SinkhornOf4(int32_t iters, float eps, float* comb) {
  const __m128 all_eps = _mm_set1_ps(eps);
  Rows4 m;
  for (int i = 0; i < 4; ++i) m.r[i] = _mm_loadu_ps(comb + 4 * i);
  m = NormalizeColumns(m, all_eps);
  for (int32_t i = 1; i < iters; ++i) {
    m = Transposed(NormalizeColumns(Transposed(m), all_eps));
    m = NormalizeColumns(m, all_eps);
  }
  for (int i = 0; i < 4; ++i) _mm_storeu_ps(comb + 4 * i, m.r[i]);
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
  kernels->rotate = RotateRow<Isa>;
  kernels->compress_pair = CompressPairRow<Isa>;
  kernels->all_finite = AllFiniteRow;
  kernels->sinkhorn_of_4 = SinkhornOf4;
  kernels->engram_gate = EngramGateRow<Isa>;
  kernels->exp = ExpRow<Isa>;
}

}  // namespace
}  // namespace deepinfer
