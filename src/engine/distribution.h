// The processed next-token distribution in exact integers (numerics.md §5.3-5.5): weights in units
// of 2^-46, filters as a prefix of the rank order, draws from counter-based random numbers. Sums
// are integer, so no result depends on an order of evaluation.
// Thread rule: pure functions over caller-owned buffers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace deepinfer {

// Ids that survive the filters, ascending, with W = rint(2^46·2^((z - max z)·log2(e)/T)).
struct Survivors {
  std::vector<int32_t> ids;
  std::vector<uint64_t> weights;
  uint64_t total = 0;  // sum of weights; below 2^63 for vocabularies under 2^17 ids
};

struct FilterParams {
  int32_t top_k = 0;   // 0 = off
  float top_p = 1.0f;  // 1 = off
  float min_p = 0.0f;  // 0 = off
};

// Index of the largest logit, the lowest on ties; -1 if every logit is -inf or NaN.
int32_t ArgMax(std::span<const float> logits);

// Weights at the given temperature (> 0) with all filters evaluated on the same full distribution.
// Empty when every logit is -inf. Precondition: no logit is NaN or +inf.
Survivors BuildSurvivors(std::span<const float> logits, float temperature,
                         const FilterParams& filters);

// CDF draw (rejection mode) with the 64-bit random value x. Precondition: survivors not empty.
int32_t DrawCdf(const Survivors& survivors, uint64_t x);

// Race draw (strict mode): noise of every id keyed by (seed, position).
int32_t DrawRace(const Survivors& survivors, uint64_t seed, uint64_t position);

}  // namespace deepinfer
