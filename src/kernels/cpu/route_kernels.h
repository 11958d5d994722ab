// Router scores on four fp64 lanes: twins of DetSoftplus and what it calls (base/det_math.h), the
// same operations in the same order.
// Internal linkage on purpose (kernel_table.h).
// Thread rule: pure functions.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "base/det_exp_terms.h"
#include "base/det_math.h"

namespace deepinfer {
namespace {

// DetExp of values in [-700, 20], whose results are normal numbers.
inline __m256d ExpOf4(__m256d x) {
  using namespace det_internal;
  const __m256d magic = _mm256_set1_pd(kRoundMagic);
  const __m256d shifted = _mm256_fmadd_pd(x, _mm256_set1_pd(kLog2e), magic);
  const __m256d n = _mm256_sub_pd(shifted, magic);
  __m256d r = _mm256_fmadd_pd(n, _mm256_set1_pd(-kLn2Hi), x);
  r = _mm256_fmadd_pd(n, _mm256_set1_pd(-kLn2Lo), r);
  __m256d p = _mm256_set1_pd(kInverseFactorial[kExpTerms - 1]);
#pragma GCC unroll 16
  for (int i = kExpTerms - 2; i >= 0; --i) {
    p = _mm256_fmadd_pd(p, r, _mm256_set1_pd(kInverseFactorial[i]));
  }
  // The integer as it lies in the low bits of `shifted`, to the exponent.
  const __m256i biased =
      _mm256_add_epi64(_mm256_sub_epi64(_mm256_castpd_si256(shifted), _mm256_castpd_si256(magic)),
                       _mm256_set1_epi64x(1023));
  return _mm256_mul_pd(p, _mm256_castsi256_pd(_mm256_slli_epi64(biased, 52)));
}

// DetLn of normal numbers of at least 1.
inline __m256d LnOf4(__m256d x) {
  using namespace det_internal;
  const __m256i bits = _mm256_castpd_si256(x);
  const __m256d one = _mm256_set1_pd(1.0);
  __m256i e = _mm256_sub_epi64(_mm256_srli_epi64(bits, 52), _mm256_set1_epi64x(1023));
  const __m256i mantissa = _mm256_and_si256(bits, _mm256_set1_epi64x(0xFFFFFFFFFFFFF));
  __m256d m = _mm256_or_pd(_mm256_castsi256_pd(mantissa), one);
  const __m256d is_large = _mm256_cmp_pd(m, _mm256_set1_pd(1.4142135623730951), _CMP_GT_OQ);
  m = _mm256_blendv_pd(m, _mm256_mul_pd(m, _mm256_set1_pd(0.5)), is_large);
  e = _mm256_sub_epi64(e, _mm256_castpd_si256(is_large));
  const __m256d f = _mm256_sub_pd(m, one);
  const __m256d s = _mm256_div_pd(f, _mm256_add_pd(m, one));
  const __m256d z = _mm256_mul_pd(s, s);
  __m256d p = _mm256_set1_pd(2.0 / 23.0);
#pragma GCC unroll 16
  for (int k = 21; k >= 3; k -= 2) p = _mm256_fmadd_pd(p, z, _mm256_set1_pd(2.0 / k));
  const __m256d negated = _mm256_xor_pd(_mm256_mul_pd(s, f), _mm256_set1_pd(-0.0));
  const __m256d tail = _mm256_fmadd_pd(_mm256_mul_pd(p, z), s, negated);
  // An integer becomes a double in the low bits of the magic number.
  const __m256d magic = _mm256_set1_pd(kRoundMagic);
  const __m256d en =
      _mm256_sub_pd(_mm256_castsi256_pd(_mm256_add_epi64(e, _mm256_castpd_si256(magic))), magic);
  const __m256d low = _mm256_add_pd(tail, _mm256_mul_pd(en, _mm256_set1_pd(kLn2Lo)));
  return _mm256_fmadd_pd(en, _mm256_set1_pd(kLn2Hi), _mm256_add_pd(f, low));
}

// DetSoftplus of values in [-700, 20].
inline __m128 SoftplusOf4(__m128 x) {
  const __m256d one = _mm256_set1_pd(1.0);
  const __m256d e = ExpOf4(_mm256_cvtps_pd(x));
  const __m256d u = _mm256_add_pd(one, e);
  const __m256d ratio = _mm256_div_pd(e, _mm256_sub_pd(u, one));
  const __m256d log = _mm256_mul_pd(LnOf4(u), ratio);
  const __m256d is_tiny = _mm256_cmp_pd(u, one, _CMP_EQ_OQ);
  return _mm256_cvtpd_ps(_mm256_blendv_pd(log, e, is_tiny));
}

// scores[i] = sqrt(softplus(logits[i] / temperature)), n of them.
inline void RouteScores(const float* logits, int64_t n, float temperature, float* scores) {
  const __m128 divisor = _mm_set1_ps(temperature);
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const __m128 x = _mm_div_ps(_mm_loadu_ps(logits + i), divisor);
    const __m128 is_usual = _mm_and_ps(_mm_cmp_ps(x, _mm_set1_ps(-700.0f), _CMP_GE_OQ),
                                       _mm_cmp_ps(x, _mm_set1_ps(20.0f), _CMP_LE_OQ));
    __m128 softplus;
    if (_mm_movemask_ps(is_usual) == 15) [[likely]] {
      softplus = SoftplusOf4(x);
    } else {
      alignas(16) float lane[4];
      _mm_store_ps(lane, x);
      for (float& v : lane) v = DetSoftplus(v);
      softplus = _mm_load_ps(lane);
    }
    _mm_storeu_ps(scores + i, _mm_sqrt_ps(softplus));
  }
  for (; i < n; ++i) {
    const __m128 softplus = _mm_set_ss(DetSoftplus(logits[i] / temperature));
    scores[i] = _mm_cvtss_f32(_mm_sqrt_ss(softplus));
  }
}

}  // namespace
}  // namespace deepinfer
