// The sampler of numerics.md §5.3-5.5 in the plainest form: a sort, 128-bit integers, no shortcut.
// Thread rule: pure functions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "base/det_math.h"
#include "base/philox.h"
#include "engine/distribution.h"
#include "engine/sampler.h"

namespace deepinfer {

__extension__ using Wide = unsigned __int128;

// Ids by (logit descending, id ascending).
inline std::vector<int32_t> RankOrder(const std::vector<float>& z) {
  std::vector<int32_t> order(z.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const float za = z[static_cast<size_t>(a)], zb = z[static_cast<size_t>(b)];
    return za != zb ? za > zb : a < b;
  });
  return order;
}

inline Survivors ReferenceSurvivors(const std::vector<float>& z, float temperature,
                                    const FilterParams& f) {
  Survivors out;
  const std::vector<int32_t> order = RankOrder(z);
  if (order.empty() || std::isinf(z[static_cast<size_t>(order[0])])) return out;
  const float max = z[static_cast<size_t>(order[0])];
  const float c = static_cast<float>(std::log2(std::exp(1.0)) / static_cast<double>(temperature));
  std::vector<uint64_t> w(z.size());
  for (size_t i = 0; i < z.size(); ++i) {
    w[i] = static_cast<uint64_t>(std::rint(std::ldexp(double{DetExp2((z[i] - max) * c)}, 46)));
  }
  const Wide total = std::accumulate(w.begin(), w.end(), Wide{0});
  const Wide p32 = static_cast<Wide>(std::rint(std::ldexp(double{f.top_p}, 32)));
  const auto min_weight = static_cast<uint64_t>(std::ceil(std::ldexp(double{f.min_p}, 46)));
  Wide before = 0;
  std::vector<int32_t> kept;
  for (size_t rank = 0; rank < order.size(); ++rank) {
    const int32_t id = order[rank];
    const uint64_t weight = w[static_cast<size_t>(id)];
    const bool in_k = f.top_k == 0 || rank < static_cast<size_t>(f.top_k);
    const bool in_p = f.top_p >= 1.0f || (before << 32) <= p32 * total;
    const bool in_min = weight >= min_weight;
    if (rank == 0 || (in_k && in_p && in_min && weight > 0)) kept.push_back(id);
    before += weight;
  }
  std::sort(kept.begin(), kept.end());
  for (int32_t id : kept) {
    out.ids.push_back(id);
    out.weights.push_back(w[static_cast<size_t>(id)]);
    out.total += out.weights.back();
  }
  return out;
}

inline int32_t ReferenceCdf(const Survivors& s, uint64_t x) {
  const Wide target = Wide{x} * s.total / (Wide{1} << 64);
  Wide sum = 0;
  for (size_t i = 0; i < s.ids.size(); ++i) {
    sum += s.weights[i];
    if (sum > target) return s.ids[i];
  }
  return -1;
}

inline int32_t ReferenceRace(const Survivors& s, uint64_t seed, uint64_t position) {
  int32_t winner = -1;
  double best = INFINITY;
  for (size_t i = 0; i < s.ids.size(); ++i) {
    const auto id = static_cast<uint32_t>(s.ids[i]);
    const PhiloxBlock b = Philox4x32(
        {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 4, id >> 1},
        {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
    const uint64_t x = uint64_t{b[2 * (id & 1) + 1]} << 32 | b[2 * (id & 1)];
    const double u = (static_cast<double>(x >> 12) + 0.5) / 4503599627370496.0;
    const double key = -DetLn(u) / static_cast<double>(s.weights[i]);
    if (key < best) {
      best = key;
      winner = s.ids[i];
    }
  }
  return winner;
}

// The sampler under test with buffers of its own; survivors are empty when nothing can be drawn.
inline Survivors SurvivorsOf(std::span<const float> z, float temperature, const FilterParams& f) {
  Survivors out;
  DistributionScratch scratch;
  const RowSummary summary = SummarizeRow(z);
  if (summary.best >= 0) {
    BuildSurvivors(MakeLogitRow(z, {}, summary, temperature), f, &scratch, &out);
  }
  return out;
}

inline Result<SampledToken> SampleToken(const Sampler& sampler, std::vector<float> z,
                                        int64_t position, std::span<const int32_t> pending = {}) {
  SamplerScratch scratch;
  SampleRow row;
  row.logits = z;
  row.position = position;
  row.pending = pending;
  return sampler.Sample(row, &scratch);
}

inline Result<int32_t> SampleId(const Sampler& sampler, std::vector<float> z, int64_t position,
                                std::span<const int32_t> pending = {}) {
  const Result<SampledToken> token = SampleToken(sampler, std::move(z), position, pending);
  if (!token.ok()) return token.status();
  return token->id;
}

}  // namespace deepinfer
