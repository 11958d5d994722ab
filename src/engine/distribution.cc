#include "engine/distribution.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/det_math.h"
#include "base/philox.h"

namespace deepinfer {

namespace {

__extension__ using Uint128 = unsigned __int128;

constexpr double kLog2e = 1.4426950408889634;
constexpr double kWeightUnit = 0x1p46;
// DetLn is good to 2 ulp and each product or quotient to 1/2; 2^-40 leaves ample room.
constexpr double kRaceBoundSlack = 1.0 - 0x1p-40;

// Larger float, larger key; both zeros share one, because they tie.
uint32_t SortableKey(float z) {
  const uint32_t u = std::bit_cast<uint32_t>(z + 0.0f);
  return (u & 0x80000000u) != 0 ? ~u : u | 0x80000000u;
}

// Where the rank order is cut: ids with a larger key survive, and the first num_ties ids (in
// ascending order) with exactly this key.
struct Cut {
  uint32_t key = 0;
  int64_t num_ties = 0;
};

// Walks the rank order in three radix passes over the key bits and stops at the first rank r with
// r >= max_count or more than max_mass of weight before it.
class RankCut {
 public:
  RankCut(std::span<const uint32_t> keys, std::span<const uint64_t> weights, uint64_t max_count,
          uint64_t max_mass)
      : keys_(keys), weights_(weights), max_count_(max_count), max_mass_(max_mass) {}

  Cut Find() {
    Descend(21, 11);
    Descend(10, 11);
    Descend(0, 10);
    // All ids of the last bucket share one key and hence one weight.
    const uint64_t weight = bucket_count_ == 0 ? 0 : bucket_mass_ / bucket_count_;
    uint64_t ties = std::min(bucket_count_, max_count_ > count_ ? max_count_ - count_ : 0);
    if (mass_ > max_mass_) {
      ties = 0;
    } else if (weight > 0) {
      ties = std::min(ties, (max_mass_ - mass_) / weight + 1);
    }
    return {prefix_, static_cast<int64_t>(ties)};
  }

 private:
  void Descend(int shift, int bits) {
    const size_t buckets = size_t{1} << bits;
    std::vector<uint64_t> count(buckets, 0), mass(buckets, 0);
    const uint32_t above = shift + bits >= 32 ? 0 : ~uint32_t{0} << (shift + bits);
    for (size_t i = 0; i < keys_.size(); ++i) {
      if ((keys_[i] & above) != prefix_) continue;
      const size_t b = (keys_[i] >> shift) & (buckets - 1);
      ++count[b];
      mass[b] += weights_[i];
    }
    size_t b = buckets - 1;
    // A bucket passes whole if even the rank after it is still inside both limits; the last
    // non-empty one is always entered.
    for (; b > 0; --b) {
      const bool passes = count_ + count[b] < max_count_ && mass_ + mass[b] <= max_mass_;
      if (!passes) break;
      count_ += count[b];
      mass_ += mass[b];
    }
    prefix_ |= static_cast<uint32_t>(b) << shift;
    bucket_count_ = count[b];
    bucket_mass_ = mass[b];
  }

  std::span<const uint32_t> keys_;
  std::span<const uint64_t> weights_;
  uint64_t max_count_, max_mass_;
  uint32_t prefix_ = 0;
  uint64_t count_ = 0, mass_ = 0;  // of the ranks above the current bucket
  uint64_t bucket_count_ = 0, bucket_mass_ = 0;
};

}  // namespace

int32_t ArgMax(std::span<const float> logits) {
  int32_t best = -1;
  float max = -std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > max) {
      max = logits[i];
      best = static_cast<int32_t>(i);
    }
  }
  return best;
}

Survivors BuildSurvivors(std::span<const float> logits, float temperature,
                         const FilterParams& filters) {
  Survivors out;
  const int32_t best = ArgMax(logits);
  if (best < 0) return out;
  const float max = logits[static_cast<size_t>(best)];
  const float c = static_cast<float>(kLog2e / static_cast<double>(temperature));
  std::vector<uint64_t> weights(logits.size());
  uint64_t total = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const float w = DetExp2((logits[i] - max) * c);
    weights[i] = static_cast<uint64_t>(std::nearbyint(static_cast<double>(w) * kWeightUnit));
    total += weights[i];
  }

  Cut cut;
  const bool ranked = filters.top_k > 0 || filters.top_p < 1.0f;
  std::vector<uint32_t> keys;
  if (ranked) {
    keys.reserve(logits.size());
    for (float z : logits) keys.push_back(SortableKey(z));
    const uint64_t max_count = filters.top_k > 0 ? static_cast<uint64_t>(filters.top_k)
                                                 : std::numeric_limits<uint64_t>::max();
    uint64_t max_mass = std::numeric_limits<uint64_t>::max();
    if (filters.top_p < 1.0f) {
      const auto p32 =
          static_cast<uint64_t>(std::nearbyint(static_cast<double>(filters.top_p) * 0x1p32));
      max_mass = static_cast<uint64_t>((Uint128{p32} * total) >> 32);
    }
    cut = RankCut(keys, weights, max_count, max_mass).Find();
  }
  const auto min_weight = static_cast<uint64_t>(
      std::max(1.0, std::ceil(static_cast<double>(filters.min_p) * kWeightUnit)));
  for (size_t i = 0; i < logits.size(); ++i) {
    bool keep = weights[i] >= min_weight;
    if (ranked && keys[i] <= cut.key) keep = keys[i] == cut.key && cut.num_ties-- > 0 && keep;
    // The best rank survives every filter.
    if (!keep && static_cast<int32_t>(i) != best) continue;
    out.ids.push_back(static_cast<int32_t>(i));
    out.weights.push_back(weights[i]);
    out.total += weights[i];
  }
  return out;
}

int32_t DrawCdf(const Survivors& survivors, uint64_t x) {
  const uint64_t target = static_cast<uint64_t>((Uint128{x} * survivors.total) >> 64);
  uint64_t sum = 0;
  for (size_t i = 0; i < survivors.ids.size(); ++i) {
    sum += survivors.weights[i];
    if (sum > target) return survivors.ids[i];
  }
  return survivors.ids.back();
}

int32_t DrawRace(const Survivors& survivors, uint64_t seed, uint64_t position) {
  int32_t winner = survivors.ids.front();
  double best = std::numeric_limits<double>::infinity();
  PhiloxBlock block{};
  int64_t block_index = -1;
  for (size_t i = 0; i < survivors.ids.size(); ++i) {
    const auto id = static_cast<uint32_t>(survivors.ids[i]);
    if (block_index != id >> 1) {
      block_index = id >> 1;
      block = RandomBlock(seed, position, RandomPurpose::kRace, id >> 1);
    }
    const size_t word = 2 * (id & 1);
    const double u = UniformFromBits((uint64_t{block[word + 1]} << 32) | block[word]);
    const auto weight = static_cast<double>(survivors.weights[i]);
    // -ln u >= 1 - u, which is exact here; the factor covers the roundings of both sides.
    if ((1.0 - u) * kRaceBoundSlack > best * weight) continue;
    const double key = -DetLn(u) / weight;
    if (key < best) {
      best = key;
      winner = survivors.ids[i];
    }
  }
  return winner;
}

}  // namespace deepinfer
