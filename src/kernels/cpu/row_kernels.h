// Norms, hyper-connections, SwiGLU and the Engram gate on one row, for every instruction set.
// Internal linkage on purpose (kernel_table.h).
// Thread rule: pure functions.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/quantize_kernels.h"
#include "kernels/cpu/route_kernels.h"
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

// Sums of the lanes of Lane16 over k in [0, n), n a multiple of 16, for kA rows of a and kB of b:
// lanes [kA, lanes_stride] continue.
template <class Isa, int kA, int kB>
void AddDotLanes(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t n,
                 float* lanes, int64_t lanes_stride) {
  using Float = typename Isa::Float;
  for (int64_t part = 0; part < 16; part += Isa::kLanes) {
    Float sum[kA][kB];
#pragma GCC unroll 8
    for (int i = 0; i < kA; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < kB; ++j) {
        sum[i][j] = Isa::LoadFloats(lanes + i * lanes_stride + 16 * j + part);
      }
    }
    for (int64_t k = part; k < n; k += 16) {
      Float right[kB];
#pragma GCC unroll 4
      for (int j = 0; j < kB; ++j) right[j] = Isa::LoadFloats(b + j * b_stride + k);
#pragma GCC unroll 8
      for (int i = 0; i < kA; ++i) {
        Float left = Isa::LoadFloats(a + i * a_stride + k);
        // Loaded once and not for every product.
        if constexpr (Isa::kLanes == 8) asm("" : "+x"(left));
#pragma GCC unroll 4
        for (int j = 0; j < kB; ++j) sum[i][j] = Isa::FmaFloat(left, right[j], sum[i][j]);
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kA; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < kB; ++j) {
        Isa::StoreFloat(lanes + i * lanes_stride + 16 * j + part, sum[i][j]);
      }
    }
  }
}

// The same of kA rows with themselves: lanes [kA, 16].
template <class Isa, int kA>
void AddSquareLanes(const float* a, int64_t a_stride, int64_t n, float* lanes) {
  using Float = typename Isa::Float;
  for (int64_t part = 0; part < 16; part += Isa::kLanes) {
    Float sum[kA];
#pragma GCC unroll 8
    for (int i = 0; i < kA; ++i) sum[i] = Isa::LoadFloats(lanes + 16 * i + part);
    for (int64_t k = part; k < n; k += 16) {
#pragma GCC unroll 8
      for (int i = 0; i < kA; ++i) {
        const Float x = Isa::LoadFloats(a + i * a_stride + k);
        sum[i] = Isa::FmaFloat(x, x, sum[i]);
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kA; ++i) Isa::StoreFloat(lanes + 16 * i + part, sum[i]);
  }
}

// lanes of one dot continue over the last n < 16 elements.
template <class Isa>
void AddLastLanes(const float* a, const float* b, int n, float* lanes) {
  Isa::Store(lanes,
             Isa::FmaPartial(Isa::LoadPartial(a, n), Isa::LoadPartial(b, n), Isa::Load(lanes), n));
}

// One chunk of k of a task of mixes: lanes [rows, kHcTaskMixes, 16] continue.
template <class Isa>
void AddMixLanes(const float* v, int64_t rows, const float* fn, int64_t mixes, int64_t width,
                 int64_t n, float* lanes) {
  constexpr int kMixes = Isa::kLanes == 16 ? 4 : 3;
  constexpr int64_t kStride = 16 * kHcTaskMixes;
  const auto add_rows = [=]<int kRows>(int64_t t, std::integral_constant<int, kRows>) {
    const float* a = v + t * width;
    float* out = lanes + t * kStride;
    int64_t m = 0;
    for (; m + kMixes <= mixes; m += kMixes) {
      AddDotLanes<Isa, kRows, kMixes>(a, width, fn + m * width, width, n, out + 16 * m, kStride);
    }
    for (; m < mixes; ++m) {
      AddDotLanes<Isa, kRows, 1>(a, width, fn + m * width, width, n, out + 16 * m, kStride);
    }
  };
  int64_t t = 0;
  for (; t + 4 <= rows; t += 4) add_rows(t, std::integral_constant<int, 4>{});
  for (; t < rows; ++t) add_rows(t, std::integral_constant<int, 1>{});
}

// Dots of up to kHcTaskRows rows of h with up to kHcTaskMixes rows of fn, walked together in chunks
// of k that stay in the first-level cache; and the rows' sums of squares where asked for.
template <class Isa>
void HcMixRows(const HcMixTask& task) {
  constexpr int64_t kChunk = 512;
  alignas(64) float lanes[kHcTaskRows * kHcTaskMixes * 16] = {};
  alignas(64) float squares[kHcTaskRows * 16] = {};
  const int64_t width = task.width, whole = width / 16 * 16;
  const int rest = static_cast<int>(width - whole);
  for (int64_t k = 0; k < whole; k += kChunk) {
    const int64_t n = whole - k < kChunk ? whole - k : kChunk;
    const float* v = task.h + k;
    AddMixLanes<Isa>(v, task.num_rows, task.fn + k, task.num_mixes, width, n, lanes);
    if (task.squares == nullptr) continue;
    if (task.num_rows == kHcTaskRows) {
      AddSquareLanes<Isa, kHcTaskRows>(v, width, n, squares);
    } else {
      for (int64_t t = 0; t < task.num_rows; ++t) {
        AddSquareLanes<Isa, 1>(v + t * width, width, n, squares + 16 * t);
      }
    }
  }
  for (int64_t t = 0; t < task.num_rows; ++t) {
    const float* last = task.h + t * width + whole;
    for (int64_t m = 0; m < task.num_mixes; ++m) {
      float* sums = lanes + (t * kHcTaskMixes + m) * 16;
      if (rest > 0) AddLastLanes<Isa>(last, task.fn + m * width + whole, rest, sums);
      task.mixes[t * task.mixes_stride + m] = Isa::LaneSum(Isa::Load(sums));
    }
    if (task.squares == nullptr) continue;
    if (rest > 0) AddLastLanes<Isa>(last, last, rest, squares + 16 * t);
    task.squares[t] = Isa::LaneSum(Isa::Load(squares + 16 * t));
  }
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

// One row of Operators::BlockMaxima.
inline void BlockMaximaRow(int64_t n, const float* x, float* maxima) {
  static_assert(kMaximaBlock == 32);
  const __m256i exponent = _mm256_set1_epi32(0x7F800000);
  const auto not_finite = [&](__m256 v) {
    return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_castps_si256(v), exponent), exponent);
  };
  int64_t i = 0;
  for (; i + kMaximaBlock <= n; i += kMaximaBlock) {
    const __m256 v0 = _mm256_loadu_ps(x + i), v1 = _mm256_loadu_ps(x + i + 8);
    const __m256 v2 = _mm256_loadu_ps(x + i + 16), v3 = _mm256_loadu_ps(x + i + 24);
    const __m256i any = _mm256_or_si256(_mm256_or_si256(not_finite(v0), not_finite(v1)),
                                        _mm256_or_si256(not_finite(v2), not_finite(v3)));
    const __m256 of8 = _mm256_max_ps(_mm256_max_ps(v0, v1), _mm256_max_ps(v2, v3));
    const __m128 of4 = _mm_max_ps(_mm256_castps256_ps128(of8), _mm256_extractf128_ps(of8, 1));
    const __m128 of2 = _mm_max_ps(of4, _mm_movehl_ps(of4, of4));
    const __m128 of1 = _mm_max_ss(of2, _mm_movehdup_ps(of2));
    *maxima++ = _mm256_testz_si256(any, any) != 0 ? _mm_cvtss_f32(of1) : NAN;
  }
  if (i == n) return;
  float max = x[i];
  bool finite = true;
  for (; i < n; ++i) {
    max = x[i] > max ? x[i] : max;
    finite = finite && x[i] - x[i] == 0.0f;
  }
  *maxima = finite ? max : NAN;
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
  kernels->rms_norm = RmsNormRow<Isa>;
  kernels->hc_mixes = HcMixRows<Isa>;
  kernels->hc_pre = HcPreRow<Isa>;
  kernels->hc_post = HcPostRow<Isa>;
  kernels->swiglu = SwigluRow<Isa>;
  kernels->round_bf16 = RoundBf16Row<Isa>;
  kernels->add = AddRow<Isa>;
  kernels->rotate = RotateRow<Isa>;
  kernels->compress_pair = CompressPairRow<Isa>;
  kernels->all_finite = AllFiniteRow;
  kernels->block_maxima = BlockMaximaRow;
  kernels->sinkhorn_of_4 = SinkhornOf4;
  kernels->engram_gate = EngramGateRow<Isa>;
  kernels->quantize_fp8 = QuantizeFp8Row;
  kernels->route_scores = RouteScores;
  kernels->exp = ExpRow<Isa>;
}

}  // namespace
}  // namespace deepinfer
