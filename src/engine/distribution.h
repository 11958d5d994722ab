// The processed next-token distribution in exact integers (numerics.md §5.3-5.5): weights in units
// of 2^-46, filters as a prefix of the rank order, draws from counter-based random numbers. Sums
// are integer, so no result depends on an order of evaluation.
// Thread rule: pure functions over caller-owned buffers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/distribution_loops.h"

namespace deepinfer {

// A row of logits f32 [vocab] at one temperature (> 0). Borrows the logits, none of which is NaN
// or +inf and one of which is finite.
struct LogitRow {
  std::span<const float> logits;
  std::span<const float> maxima;  // bounds of blocks (SummarizeRow); empty: not known
  int32_t best;                   // first id of the rank order
  WeightScale scale;
};

LogitRow MakeLogitRow(std::span<const float> logits, std::span<const float> maxima,
                      const RowSummary& summary, float temperature);

struct FilterParams {
  int32_t top_k = 0;   // 0 = off
  float top_p = 1.0f;  // 1 = off
  float min_p = 0.0f;  // 0 = off

  bool off() const { return top_k <= 0 && top_p >= 1.0f && min_p <= 0.0f; }
};

// Ids that survive the filters, ascending, with W = rint(2^46·2^((z - max z)·log2(e)/T)).
struct Survivors {
  std::vector<int32_t> ids;
  std::vector<uint64_t> weights;
  uint64_t total = 0;  // sum of weights; below 2^63 for vocabularies under 2^17 ids
};

struct RankedId {
  uint32_t key;  // larger logit, larger key
  int32_t id;
  uint64_t weight;
};

// Buffers that calls of one thread share.
struct DistributionScratch {
  std::vector<uint64_t> block_sums;
  std::vector<int32_t> ids;
  std::vector<float> maxima;
  std::vector<RankedId> ranked;
  std::vector<RankedId> bucket;
  std::vector<uint64_t> weights;  // of a whole row
  std::vector<uint16_t> buckets;
};

// All filters evaluated on the same full distribution. Never empty: the best id survives.
void BuildSurvivors(const LogitRow& row, const FilterParams& filters, DistributionScratch* scratch,
                    Survivors* out);

// CDF draw (rejection mode) with the 64-bit random value x, among survivors or, without filters,
// in the whole row.
int32_t DrawCdf(const Survivors& survivors, uint64_t x);
int32_t DrawCdf(const LogitRow& row, uint64_t x, DistributionScratch* scratch);

// Race draw (strict mode): noise of every id keyed by (seed, position).
int32_t DrawRace(const Survivors& survivors, uint64_t seed, uint64_t position);
int32_t DrawRace(const LogitRow& row, uint64_t seed, uint64_t position);

// The first num_ids ids of the rank order: logits descending, ids ascending among equals.
std::vector<int32_t> TopRanks(std::span<const float> logits, float max, size_t num_ids,
                              DistributionScratch* scratch);

// Share of the full distribution that ranks after the id (numerics.md §5.6).
float MassBelow(const LogitRow& row, int32_t id, DistributionScratch* scratch);

}  // namespace deepinfer
