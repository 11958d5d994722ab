#include "engine/distribution_loops.h"

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/det_exp_terms.h"
#include "base/philox.h"

namespace deepinfer {

namespace {

using det_internal::kLog2e;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr double kWeightUnit = 0x1p46;
// A weight below 2^-64 rounds to the integer 0.
constexpr float kSurelyZero = -64.0f;
// The sum of 2^52 and a smaller number holds that number, rounded to an integer, as its mantissa.
constexpr double kIntegerBase = 0x1p52;
// DetLn is good to 2 ulp and each product or quotient to 1/2; 2^-40 leaves ample room.
constexpr double kRaceBoundSlack = 1.0 - 0x1p-40;

// Eight logits from z, of which n exist; the others can never be drawn.
__m256 LoadLogits(const float* z, size_t n) {
  if (n >= 8) return _mm256_loadu_ps(z);
  alignas(32) float padded[8];
  std::fill(std::begin(padded), std::end(padded), -kInf);
  std::copy(z, z + n, padded);
  return _mm256_load_ps(padded);
}

// Logarithms to base 2 of eight weights in [0, 1], kSurelyZero at least.
__m256 LogWeights(__m256 z, const WeightScale& scale) {
  const __m256 x =
      _mm256_mul_ps(_mm256_sub_ps(z, _mm256_set1_ps(scale.max)), _mm256_set1_ps(scale.per_logit));
  return _mm256_max_ps(x, _mm256_set1_ps(kSurelyZero));
}

// kIntegerBase + W of eight logits, as two vectors of doubles. DetExp2 without its special cases:
// above kSurelyZero no intermediate is denormal, so one power of two replaces its two.
struct Weights8 {
  __m256d low, high;
};

Weights8 BasedWeights(__m256 log_weights) {
  using namespace det_internal;
  const __m256 x = log_weights;
  const __m256 magic = _mm256_set1_ps(kRoundMagicF);
  const __m256 n = _mm256_sub_ps(_mm256_add_ps(x, magic), magic);
  const __m256 r = _mm256_sub_ps(x, n);
  __m256 p = _mm256_set1_ps(kExp2Poly[7]);
  for (int k = 6; k >= 0; --k) p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kExp2Poly[k]));
  const __m256i exponent =
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvttps_epi32(n), _mm256_set1_epi32(127)), 23);
  const __m256 w = _mm256_mul_ps(p, _mm256_castsi256_ps(exponent));
  const auto based = [](__m128 half) {
    return _mm256_add_pd(_mm256_mul_pd(_mm256_cvtps_pd(half), _mm256_set1_pd(kWeightUnit)),
                         _mm256_set1_pd(kIntegerBase));
  };
  return {based(_mm256_castps256_ps128(w)), based(_mm256_extractf128_ps(w, 1))};
}

// Sum of the mantissa integers of n based weights.
uint64_t SumBlock(std::span<const float> z, const WeightScale& scale) {
  __m256i sum = _mm256_setzero_si256();
  uint64_t num_added = 0;
  for (size_t i = 0; i < z.size(); i += 8, num_added += 8) {
    const Weights8 w = BasedWeights(LogWeights(LoadLogits(&z[i], z.size() - i), scale));
    sum = _mm256_add_epi64(sum, _mm256_castpd_si256(w.low));
    sum = _mm256_add_epi64(sum, _mm256_castpd_si256(w.high));
  }
  alignas(32) std::array<uint64_t, 4> lane;
  _mm256_store_si256(reinterpret_cast<__m256i*>(lane.data()), sum);
  // Modulo 2^64 the bases drop out.
  return lane[0] + lane[1] + lane[2] + lane[3] - num_added * std::bit_cast<uint64_t>(kIntegerBase);
}

// e^x for x = z - max <= 0, four at a time. Equals DetExp down to -700; below it DetExp gives less
// than 1e-304, which no sum that holds e^0 can feel.
__m256d ExpBelow(__m128 z, __m256d max) {
  using namespace det_internal;
  const __m256d magic = _mm256_set1_pd(kRoundMagic);
  __m256d x = _mm256_sub_pd(_mm256_cvtps_pd(z), max);
  x = _mm256_max_pd(x, _mm256_set1_pd(-700.0));
  const __m256d shifted = _mm256_fmadd_pd(x, _mm256_set1_pd(kLog2e), magic);
  const __m256d n = _mm256_sub_pd(shifted, magic);
  __m256d r = _mm256_fmadd_pd(n, _mm256_set1_pd(-kLn2Hi), x);
  r = _mm256_fmadd_pd(n, _mm256_set1_pd(-kLn2Lo), r);
  __m256d p = _mm256_set1_pd(kInverseFactorial[kExpTerms - 1]);
  for (int k = kExpTerms - 2; k >= 0; --k) {
    p = _mm256_fmadd_pd(p, r, _mm256_set1_pd(kInverseFactorial[k]));
  }
  // The low mantissa bits of `shifted` are n in two's complement.
  const __m256i exponent = _mm256_slli_epi64(
      _mm256_add_epi64(_mm256_castpd_si256(shifted), _mm256_set1_epi64x(1023)), 52);
  return _mm256_mul_pd(p, _mm256_castsi256_pd(exponent));
}

double RaceUniform(int32_t id, uint64_t seed, uint64_t position) {
  const auto u = static_cast<uint32_t>(id);
  const PhiloxBlock block = RandomBlock(seed, position, RandomPurpose::kRace, u >> 1);
  const size_t word = 2 * (u & 1);
  return UniformFromBits((uint64_t{block[word + 1]} << 32) | block[word]);
}

// Four counter blocks at once, one in each 64-bit lane; words sit in the low halves.
struct Philox4 {
  __m256i word[4];
};

Philox4 RaceBlocks(uint64_t seed, uint64_t position, uint32_t first_index) {
  const auto low = [](uint64_t v) {
    return _mm256_set1_epi64x(static_cast<int64_t>(v & 0xffffffffu));
  };
  __m256i c0 = low(position), c1 = low(position >> 32);
  __m256i c2 = low(static_cast<uint32_t>(RandomPurpose::kRace));
  __m256i c3 = _mm256_add_epi64(low(first_index), _mm256_set_epi64x(3, 2, 1, 0));
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    // Only low halves are multiplied, so the high ones need no clearing.
    const __m256i p0 = _mm256_mul_epu32(low(0xD2511F53), c0);
    const __m256i p1 = _mm256_mul_epu32(low(0xCD9E8D57), c2);
    c0 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), c1), low(k0));
    c2 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), c3), low(k1));
    c1 = p1;
    c3 = p0;
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return {{c0, c1, c2, c3}};
}

// 1 - U of four 64-bit random values whose halves are low and high.
__m256d OneMinusUniform(__m256i low, __m256i high) {
  const __m256i x = _mm256_or_si256(_mm256_slli_epi64(high, 32),
                                    _mm256_and_si256(low, _mm256_set1_epi64x(0xffffffff)));
  const __m256i based =
      _mm256_or_si256(_mm256_srli_epi64(x, 12), _mm256_castpd_si256(_mm256_set1_pd(kIntegerBase)));
  const __m256d integer = _mm256_sub_pd(_mm256_castsi256_pd(based), _mm256_set1_pd(kIntegerBase));
  const __m256d u =
      _mm256_mul_pd(_mm256_add_pd(integer, _mm256_set1_pd(0.5)), _mm256_set1_pd(0x1p-52));
  return _mm256_sub_pd(_mm256_set1_pd(1.0), u);
}

// Bit i set: id first_id + i of eight may still beat the best key; never set without a weight.
// -ln u >= 1 - u, and 1 - u is exact; the slack covers the roundings of both sides.
int MayWin(__m256 z, const WeightScale& scale, double best_key, uint64_t seed, uint64_t position,
           size_t first_id) {
  const Philox4 r = RaceBlocks(seed, position, static_cast<uint32_t>(first_id / 2));
  const __m256d even = OneMinusUniform(r.word[0], r.word[1]);
  const __m256d odd = OneMinusUniform(r.word[2], r.word[3]);
  const __m256d front = _mm256_unpacklo_pd(even, odd), back = _mm256_unpackhi_pd(even, odd);
  const Weights8 based = BasedWeights(LogWeights(z, scale));
  const auto may_win = [&](__m256d one_minus_u, __m256d based_weight) {
    const __m256d weight = _mm256_sub_pd(based_weight, _mm256_set1_pd(kIntegerBase));
    const __m256d least = _mm256_mul_pd(one_minus_u, _mm256_set1_pd(kRaceBoundSlack));
    const __m256d limit = _mm256_mul_pd(weight, _mm256_set1_pd(best_key));
    return _mm256_movemask_pd(_mm256_cmp_pd(least, limit, _CMP_LE_OQ));
  };
  return may_win(_mm256_permute2f128_pd(front, back, 0x20), based.low) |
         may_win(_mm256_permute2f128_pd(front, back, 0x31), based.high) << 4;
}

}  // namespace

WeightScale MakeWeightScale(float max, float temperature) {
  return {max, static_cast<float>(kLog2e / static_cast<double>(temperature))};
}

uint64_t WeightOf(float z, const WeightScale& scale) {
  const float w = DetExp2((z - scale.max) * scale.per_logit);
  return static_cast<uint64_t>(std::nearbyint(static_cast<double>(w) * kWeightUnit));
}

namespace {

// Largest of a block of logits; *good becomes false when one of them is NaN or +inf.
float BlockMax(std::span<const float> z, bool* good) {
  // Several chains, so that the loop waits for memory and not for its own maximum.
  constexpr size_t kChains = 4;
  __m256 max[kChains], fine[kChains];
  std::fill(std::begin(max), std::end(max), _mm256_set1_ps(-kInf));
  std::fill(std::begin(fine), std::end(fine), _mm256_castsi256_ps(_mm256_set1_epi32(-1)));
  const auto take = [&](size_t chain, __m256 v) {
    max[chain] = _mm256_max_ps(v, max[chain]);
    // NaN fails the comparison as well.
    fine[chain] = _mm256_and_ps(fine[chain], _mm256_cmp_ps(v, _mm256_set1_ps(kInf), _CMP_LT_OQ));
  };
  size_t i = 0;
  for (; i + 8 * kChains <= z.size(); i += 8 * kChains) {
    for (size_t c = 0; c < kChains; ++c) take(c, _mm256_loadu_ps(&z[i + 8 * c]));
  }
  for (; i < z.size(); i += 8) take(0, LoadLogits(&z[i], z.size() - i));
  const __m256 all_fine =
      _mm256_and_ps(_mm256_and_ps(fine[0], fine[1]), _mm256_and_ps(fine[2], fine[3]));
  *good = *good && _mm256_movemask_ps(all_fine) == 0xff;
  alignas(32) float lane[8];
  _mm256_store_ps(lane,
                  _mm256_max_ps(_mm256_max_ps(max[0], max[1]), _mm256_max_ps(max[2], max[3])));
  return *std::max_element(std::begin(lane), std::end(lane));
}

// Calls visit(i) for every i >= begin with z[i] >= threshold, ascending.
template <typename Visit>
void ForEachAtLeast(std::span<const float> z, size_t begin, float threshold, Visit&& visit) {
  const __m256 limit = _mm256_set1_ps(threshold);
  for (size_t i = begin; i < z.size(); i += 8) {
    const size_t n = z.size() - i;
    const int in = _mm256_movemask_ps(_mm256_cmp_ps(LoadLogits(&z[i], n), limit, _CMP_GE_OQ));
    auto bits = static_cast<unsigned>(in) & (n >= 8 ? 0xffu : (1u << n) - 1);
    for (; bits != 0; bits &= bits - 1) visit(i + static_cast<size_t>(std::countr_zero(bits)));
  }
}

}  // namespace

RowSummary SummarizeRow(std::span<const float> logits, std::span<const float> maxima) {
  RowSummary row;
  row.max = -kInf;
  row.drawable = true;
  // The block that holds the first of the largest is searched again, from the cache.
  std::span<const float> first;
  const auto look = [&](size_t begin, size_t size) {
    const auto block = logits.subspan(begin, std::min(size, logits.size() - begin));
    const float max = BlockMax(block, &row.drawable);
    if (max <= row.max) return;
    row.max = max;
    first = block;
  };
  if (maxima.empty()) {
    for (size_t i = 0; i < logits.size(); i += kLogitBlock) look(i, kLogitBlock);
  } else {
    for (size_t i = 0; i < maxima.size(); i += 8) {
      const __m256 bounds = LoadLogits(&maxima[i], maxima.size() - i);
      if (_mm256_movemask_ps(_mm256_cmp_ps(bounds, bounds, _CMP_UNORD_Q)) != 0) {
        return SummarizeRow(logits, {});
      }
      const __m256 max = _mm256_set1_ps(row.max);
      auto bits = static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(bounds, max, _CMP_GT_OQ)));
      for (; bits != 0; bits &= bits - 1) {
        const size_t block = i + static_cast<size_t>(std::countr_zero(bits));
        if (maxima[block] > row.max) look(block * size_t{kMaximaBlock}, size_t{kMaximaBlock});
      }
    }
  }
  if (!row.drawable || first.empty()) return row;
  const auto best = std::find(first.begin(), first.end(), row.max);
  row.best = static_cast<int32_t>(first.data() - logits.data() + (best - first.begin()));
  return row;
}

uint64_t SumWeights(std::span<const float> logits, const WeightScale& scale,
                    std::vector<uint64_t>* block_sums) {
  block_sums->clear();
  uint64_t total = 0;
  for (size_t begin = 0; begin < logits.size(); begin += kLogitBlock) {
    block_sums->push_back(
        SumBlock(logits.subspan(begin, std::min(kLogitBlock, logits.size() - begin)), scale));
    total += block_sums->back();
  }
  return total;
}

void WeighRow(std::span<const float> logits, const WeightScale& scale,
              std::vector<uint64_t>* weights, std::vector<uint16_t>* buckets) {
  const size_t padded = (logits.size() + 7) / 8 * 8;
  if (weights->size() < padded) weights->resize(padded);
  if (buckets->size() < padded) buckets->resize(padded);
  const __m256i base = _mm256_castpd_si256(_mm256_set1_pd(kIntegerBase));
  const auto store = [&](uint64_t* to, __m256d based) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                        _mm256_sub_epi64(_mm256_castpd_si256(based), base));
  };
  for (size_t i = 0; i < logits.size(); i += 8) {
    const __m256 x = LogWeights(LoadLogits(&logits[i], logits.size() - i), scale);
    const Weights8 w = BasedWeights(x);
    store(weights->data() + i, w.low);
    store(weights->data() + i + 4, w.high);
    const __m256i bucket = _mm256_cvttps_epi32(_mm256_mul_ps(x, _mm256_set1_ps(-16.0f)));
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(buckets->data() + i),
        _mm_packus_epi32(_mm256_castsi256_si128(bucket), _mm256_extracti128_si256(bucket, 1)));
  }
}

void CollectAtLeast(std::span<const float> logits, std::span<const float> maxima, float threshold,
                    std::vector<int32_t>* ids) {
  ids->clear();
  const auto collect = [&](size_t begin, size_t end) {
    ForEachAtLeast(logits.first(end), begin, threshold,
                   [&](size_t id) { ids->push_back(static_cast<int32_t>(id)); });
  };
  if (maxima.empty()) return collect(0, logits.size());
  ForEachAtLeast(maxima, 0, threshold, [&](size_t block) {
    const size_t begin = block * size_t{kMaximaBlock};
    collect(begin, std::min(begin + size_t{kMaximaBlock}, logits.size()));
  });
}

int32_t RaceRow(std::span<const float> logits, const WeightScale& scale, int32_t best,
                uint64_t seed, uint64_t position) {
  const auto weight_of = [&](int32_t id) {
    return static_cast<double>(WeightOf(logits[static_cast<size_t>(id)], scale));
  };
  int32_t winner = best;
  double best_key = -DetLn(RaceUniform(best, seed, position)) / weight_of(best);
  for (size_t i = 0; i < logits.size(); i += 8) {
    const __m256 z = LoadLogits(&logits[i], logits.size() - i);
    auto bits = static_cast<unsigned>(MayWin(z, scale, best_key, seed, position, i));
    for (; bits != 0; bits &= bits - 1) {
      const auto id = static_cast<int32_t>(i) + std::countr_zero(bits);
      const double key = -DetLn(RaceUniform(id, seed, position)) / weight_of(id);
      if (key < best_key || (key == best_key && id < winner)) {
        best_key = key;
        winner = id;
      }
    }
  }
  return winner;
}

int32_t RaceIds(std::span<const int32_t> ids, std::span<const uint64_t> weights, uint64_t seed,
                uint64_t position) {
  int32_t winner = ids.front();
  double best_key = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < ids.size(); ++i) {
    const double u = RaceUniform(ids[i], seed, position);
    const auto weight = static_cast<double>(weights[i]);
    if ((1.0 - u) * kRaceBoundSlack > best_key * weight) continue;
    const double key = -DetLn(u) / weight;
    if (key < best_key) {
      best_key = key;
      winner = ids[i];
    }
  }
  return winner;
}

double SumExp(std::span<const float> logits, float max) {
  const __m256d shift = _mm256_set1_pd(static_cast<double>(max));
  __m256d sum[4] = {};
  for (size_t i = 0; i < logits.size(); i += 16) {
    const size_t n = logits.size() - i;
    const __m256 front = LoadLogits(&logits[i], n);
    const __m256 back = n > 8 ? LoadLogits(&logits[i + 8], n - 8) : _mm256_set1_ps(-kInf);
    sum[0] = _mm256_add_pd(sum[0], ExpBelow(_mm256_castps256_ps128(front), shift));
    sum[1] = _mm256_add_pd(sum[1], ExpBelow(_mm256_extractf128_ps(front, 1), shift));
    sum[2] = _mm256_add_pd(sum[2], ExpBelow(_mm256_castps256_ps128(back), shift));
    sum[3] = _mm256_add_pd(sum[3], ExpBelow(_mm256_extractf128_ps(back, 1), shift));
  }
  alignas(32) double lane[16];
  for (size_t j = 0; j < 4; ++j) _mm256_store_pd(lane + 4 * j, sum[j]);
  for (size_t distance = 8; distance >= 1; distance /= 2) {
    for (size_t j = 0; j < distance; ++j) lane[j] += lane[j + distance];
  }
  return lane[0];
}

}  // namespace deepinfer
