#include "engine/distribution.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

namespace deepinfer {

namespace {

__extension__ using Uint128 = unsigned __int128;

constexpr double kWeightUnit = 0x1p46;
constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();
constexpr float kNegInf = -std::numeric_limits<float>::infinity();
// With more ids than this near the best one, one pass over the row is cheaper than a list of them.
constexpr size_t kMostCandidates = 2048;

// Larger float, larger key; both zeros share one, because they tie.
uint32_t SortableKey(float z) {
  const uint32_t u = std::bit_cast<uint32_t>(z + 0.0f);
  return (u & 0x80000000u) != 0 ? ~u : u | 0x80000000u;
}

// The first rank r with r >= count or more than mass of weight before it, and every later one, do
// not survive; nor does a weight below weight.
struct Limits {
  uint64_t count = kNoLimit;
  uint64_t mass = kNoLimit;
  uint64_t weight = 1;
};

Limits MakeLimits(const LogitRow& row, const FilterParams& filters, DistributionScratch* scratch) {
  Limits limits;
  if (filters.top_k > 0) limits.count = static_cast<uint64_t>(filters.top_k);
  if (filters.top_p < 1.0f) {
    const uint64_t total = SumWeights(row.logits, row.scale, &scratch->block_sums);
    const auto p32 =
        static_cast<uint64_t>(std::nearbyint(static_cast<double>(filters.top_p) * 0x1p32));
    limits.mass = static_cast<uint64_t>((Uint128{p32} * total) >> 32);
  }
  limits.weight = static_cast<uint64_t>(
      std::max(1.0, std::ceil(static_cast<double>(filters.min_p) * kWeightUnit)));
  return limits;
}

// Fills scratch->ranked with scratch->ids; their mass.
uint64_t RankIds(const LogitRow& row, DistributionScratch* scratch) {
  scratch->ranked.clear();
  uint64_t mass = 0;
  for (const int32_t id : scratch->ids) {
    const float z = row.logits[static_cast<size_t>(id)];
    scratch->ranked.push_back({SortableKey(z), id, WeightOf(z, row.scale)});
    mass += scratch->ranked.back().weight;
  }
  return mass;
}

// A logit that at least num_ids others reach, as far as bounds tell: few more do. Bounds may be too
// high, and then fewer reach it.
float LikelyThreshold(std::span<const float> maxima, uint64_t num_ids, std::vector<float>* sorted) {
  sorted->assign(maxima.begin(), maxima.end());
  const auto nth = sorted->begin() + static_cast<std::ptrdiff_t>(num_ids - 1);
  std::nth_element(sorted->begin(), nth, sorted->end(), std::greater<>());
  return *nth;
}

// Fills scratch->ranked, ascending by id, with a prefix of the rank order that holds every
// survivor. Few tokens survive in practice, so a short prefix is tried first; false when that would
// be a long one.
bool CollectCandidates(const LogitRow& row, const Limits& limits, DistributionScratch* scratch) {
  if (limits.count < row.maxima.size()) {
    const float threshold = LikelyThreshold(row.maxima, limits.count, &scratch->maxima);
    CollectAtLeast(row.logits, row.maxima, threshold, &scratch->ids);
    if (scratch->ids.size() >= limits.count && scratch->ids.size() <= kMostCandidates) {
      RankIds(row, scratch);
      return true;
    }
  }
  // Distances from the best logit in powers of two of weight; at 64 every weight is 0.
  for (const float reach : {4.0f, 8.0f, 16.0f, 32.0f, 64.0f}) {
    const float threshold = row.scale.max - reach / row.scale.per_logit;
    CollectAtLeast(row.logits, row.maxima, threshold, &scratch->ids);
    if (scratch->ids.size() > kMostCandidates) return false;
    const uint64_t mass = RankIds(row, scratch);
    // Twice, because neighbouring weights may be a rounding out of order.
    const bool rest_is_light = 2 * WeightOf(threshold, row.scale) < limits.weight;
    if (scratch->ids.size() >= limits.count || mass > limits.mass || rest_is_light) break;
  }
  return true;
}

// Where the rank order is cut: ids with a larger key survive, and the first num_ties ids (in
// ascending order) with exactly this key.
struct Cut {
  uint32_t key = 0;
  uint64_t num_ties = kNoLimit;

  // Whether the next id, in ascending order, survives.
  bool Takes(uint32_t id_key) {
    if (id_key != key) return id_key > key;
    if (num_ties == 0) return false;
    --num_ties;
    return true;
  }
};

// Walks the rank order digit by digit of the keys. Ids outside the digit where it stops are
// dropped, so only the first pass sees them all.
class RankCut {
 public:
  RankCut(const Limits& limits, std::vector<RankedId>* bucket) : limits_(limits), bucket_(bucket) {}

  // Takes a group that ranks next; false, and nothing taken, when a limit may lie inside it.
  bool Pass(uint64_t count, uint64_t mass) {
    // The rank after it must still be inside both limits.
    if (count_ + count >= limits_.count || mass_ + mass > limits_.mass) return false;
    count_ += count;
    mass_ += mass;
    return true;
  }

  // Cuts inside a group, not empty, that did not pass.
  Cut Find(std::span<const RankedId> ranked) {
    std::span<const RankedId> rest = ranked;
    for (int shift = 24; shift >= 0; shift -= 8) rest = Descend(rest, shift);
    // All ids of the last bucket share one key and hence one weight.
    const uint64_t weight = rest.front().weight;
    uint64_t ties = limits_.count - count_;
    if (weight > 0) ties = std::min(ties, (limits_.mass - mass_) / weight + 1);
    return {rest.front().key, ties};
  }

 private:
  // The ids of the digit in which a limit is met, or of the last one that occurs.
  std::span<const RankedId> Descend(std::span<const RankedId> ranked, int shift) {
    const auto digit = [shift](const RankedId& r) { return size_t{(r.key >> shift) & 0xff}; };
    std::array<uint64_t, 256> count{}, mass{};
    size_t last = 255;
    for (const RankedId& r : ranked) {
      ++count[digit(r)];
      mass[digit(r)] += r.weight;
      last = std::min(last, digit(r));
    }
    size_t d = 255;
    while (d > last && Pass(count[d], mass[d])) --d;
    size_t num_kept = 0;
    if (bucket_->size() < ranked.size()) bucket_->resize(ranked.size());
    for (const RankedId& r : ranked) {
      if (digit(r) == d) (*bucket_)[num_kept++] = r;
    }
    return {bucket_->data(), num_kept};
  }

  const Limits& limits_;
  std::vector<RankedId>* bucket_;
  // Of the ranks before the current group: count_ < limits_.count, mass_ <= limits_.mass.
  uint64_t count_ = 0, mass_ = 0;
};

void Add(int32_t id, uint64_t weight, Survivors* out) {
  out->ids.push_back(id);
  out->weights.push_back(weight);
  out->total += weight;
}

void BuildFromCandidates(const LogitRow& row, const Limits& limits, DistributionScratch* scratch,
                         Survivors* out) {
  Cut cut;
  if (limits.count != kNoLimit || limits.mass != kNoLimit) {
    cut = RankCut(limits, &scratch->bucket).Find(scratch->ranked);
  }
  for (const RankedId& r : scratch->ranked) {
    const bool ranks = cut.Takes(r.key);
    if (r.id == row.best || (ranks && r.weight >= limits.weight)) Add(r.id, r.weight, out);
  }
}

// For rows where tens of thousands of tokens survive: weights of all ids, then the bucket of the
// rank order in which a limit lies; only its ids are ranked.
void BuildFromBuckets(const LogitRow& row, const Limits& limits, DistributionScratch* scratch,
                      Survivors* out) {
  WeighRow(row.logits, row.scale, &scratch->weights, &scratch->buckets);
  const size_t vocab = row.logits.size();
  const uint64_t* weights = scratch->weights.data();
  const uint16_t* buckets = scratch->buckets.data();
  std::array<uint64_t, kRankBuckets> count{}, mass{};
  for (size_t i = 0; i < vocab; ++i) {
    ++count[buckets[i]];
    mass[buckets[i]] += weights[i];
  }
  RankCut rank_cut(limits, &scratch->bucket);
  size_t edge = 0;
  while (edge < kRankBuckets && rank_cut.Pass(count[edge], mass[edge])) ++edge;
  scratch->ranked.clear();
  // Without branches, because about any share of the ids may survive.
  if (scratch->ids.size() < vocab) scratch->ids.resize(vocab);
  size_t num_ids = 0;
  for (size_t i = 0; i < vocab; ++i) {
    scratch->ids[num_ids] = static_cast<int32_t>(i);
    num_ids += static_cast<size_t>((buckets[i] <= edge) & (weights[i] >= limits.weight));
    if (buckets[i] == edge) {
      scratch->ranked.push_back({SortableKey(row.logits[i]), static_cast<int32_t>(i), weights[i]});
    }
  }
  Cut cut;
  if (!scratch->ranked.empty()) cut = rank_cut.Find(scratch->ranked);
  for (const int32_t id : std::span(scratch->ids).first(num_ids)) {
    const auto i = static_cast<size_t>(id);
    if (buckets[i] < edge || cut.Takes(SortableKey(row.logits[i]))) Add(id, weights[i], out);
  }
}

}  // namespace

LogitRow MakeLogitRow(std::span<const float> logits, std::span<const float> maxima,
                      const RowSummary& summary, float temperature) {
  return {logits, maxima, summary.best, MakeWeightScale(summary.max, temperature)};
}

void BuildSurvivors(const LogitRow& row, const FilterParams& filters, DistributionScratch* scratch,
                    Survivors* out) {
  const Limits limits = MakeLimits(row, filters, scratch);
  out->ids.clear();
  out->weights.clear();
  out->total = 0;
  if (CollectCandidates(row, limits, scratch)) {
    BuildFromCandidates(row, limits, scratch, out);
  } else {
    BuildFromBuckets(row, limits, scratch, out);
  }
}

int32_t DrawCdf(const Survivors& survivors, uint64_t x) {
  const auto target = static_cast<uint64_t>((Uint128{x} * survivors.total) >> 64);
  uint64_t sum = 0;
  size_t i = 0;
  while ((sum += survivors.weights[i]) <= target) ++i;
  return survivors.ids[i];
}

int32_t DrawCdf(const LogitRow& row, uint64_t x, DistributionScratch* scratch) {
  const uint64_t total = SumWeights(row.logits, row.scale, &scratch->block_sums);
  const auto target = static_cast<uint64_t>((Uint128{x} * total) >> 64);
  uint64_t sum = 0;
  size_t block = 0;
  while (sum + scratch->block_sums[block] <= target) sum += scratch->block_sums[block++];
  size_t i = block * kLogitBlock;
  while ((sum += WeightOf(row.logits[i], row.scale)) <= target) ++i;
  return static_cast<int32_t>(i);
}

int32_t DrawRace(const Survivors& survivors, uint64_t seed, uint64_t position) {
  return RaceIds(survivors.ids, survivors.weights, seed, position);
}

int32_t DrawRace(const LogitRow& row, uint64_t seed, uint64_t position) {
  return RaceRow(row.logits, row.scale, row.best, seed, position);
}

std::vector<int32_t> TopRanks(std::span<const float> logits, float max, size_t num_ids,
                              DistributionScratch* scratch) {
  num_ids = std::min(num_ids, logits.size());
  if (num_ids == 0) return {};
  std::vector<int32_t>& ids = scratch->ids;
  ids.clear();
  for (float reach = 2.0f; ids.size() < num_ids; reach *= 2.0f) {
    CollectAtLeast(logits, {}, reach < 1e3f ? max - reach : kNegInf, &ids);
  }
  const auto ranks_before = [&](int32_t a, int32_t b) {
    const float za = logits[static_cast<size_t>(a)], zb = logits[static_cast<size_t>(b)];
    return za != zb ? za > zb : a < b;
  };
  const auto end = ids.begin() + static_cast<std::ptrdiff_t>(num_ids);
  std::partial_sort(ids.begin(), end, ids.end(), ranks_before);
  return {ids.begin(), end};
}

float MassBelow(const LogitRow& row, int32_t id, DistributionScratch* scratch) {
  const float chosen = row.logits[static_cast<size_t>(id)];
  const uint64_t total = SumWeights(row.logits, row.scale, &scratch->block_sums);
  CollectAtLeast(row.logits, row.maxima, chosen, &scratch->ids);
  uint64_t below = total;
  for (const int32_t other : scratch->ids) {
    const float z = row.logits[static_cast<size_t>(other)];
    if (z > chosen || other <= id) below -= WeightOf(z, row.scale);
  }
  return static_cast<float>(static_cast<double>(below) / static_cast<double>(total));
}

}  // namespace deepinfer
