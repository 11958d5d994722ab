// The loops of the sampler over a whole vocabulary, in AVX2 (the baseline of every build). Each
// equals its scalar formula bit for bit.
// Thread rule: pure functions over caller-owned buffers.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/det_math.h"
#include "kernels/ops.h"

namespace deepinfer {

// Ids of one block of the two-level search (numerics.md §5.4).
inline constexpr size_t kLogitBlock = 2048;

// Turns a logit into its integer weight W = rint(2^46·2^((z - max)·per_logit)).
struct WeightScale {
  float max = 0.0f;        // largest logit of the row
  float per_logit = 0.0f;  // fp32(log2(e) / temperature)
};

// temperature > 0.
WeightScale MakeWeightScale(float max, float temperature);

uint64_t WeightOf(float z, const WeightScale& scale);

struct RowSummary {
  float max = 0.0f;       // -inf when no id can be drawn
  int32_t best = -1;      // its lowest id; -1 when no id can be drawn
  bool drawable = false;  // no logit is NaN or +inf; without it max and best mean nothing
};

// maxima: one bound for every kMaximaBlock logits, no less than any of them, or NaN where one may
// be NaN or infinite; with them only a few blocks are read. Empty: not known.
RowSummary SummarizeRow(std::span<const float> logits, std::span<const float> maxima = {});

// Sum of all weights; block_sums gets the sum of each kLogitBlock consecutive ids.
uint64_t SumWeights(std::span<const float> logits, const WeightScale& scale,
                    std::vector<uint64_t>* block_sums);

// Places in the rank order, each a 16th of a halving of weight wide: an id of a lower bucket ranks
// before one of a higher. The last one holds only weights of 0.
inline constexpr size_t kRankBuckets = 64 * 16 + 1;

// Weight and rank bucket of every logit; both vectors get at least one entry per logit.
void WeighRow(std::span<const float> logits, const WeightScale& scale,
              std::vector<uint64_t>* weights, std::vector<uint16_t>* buckets);

// Ids with a logit >= threshold, ascending: a prefix of the rank order with all ties of its end.
// maxima as for SummarizeRow; only blocks that may hold one are read.
void CollectAtLeast(std::span<const float> logits, std::span<const float> maxima, float threshold,
                    std::vector<int32_t>* ids);

// Winners of the race of numerics.md §5.5: the smallest -ln(U)/W with the U of (seed, position,
// id), ties to the lower id. RaceRow: among all ids of a row, best being one with a weight.
// RaceIds: among ascending ids with weights above 0, at least one.
int32_t RaceRow(std::span<const float> logits, const WeightScale& scale, int32_t best,
                uint64_t seed, uint64_t position);
int32_t RaceIds(std::span<const int32_t> ids, std::span<const uint64_t> weights, uint64_t seed,
                uint64_t position);

// Sum of exp(z - max) in fp64 and Lane16 order (numerics.md §7). Precondition: max is the largest
// logit and finite.
double SumExp(std::span<const float> logits, float max);

}  // namespace deepinfer
