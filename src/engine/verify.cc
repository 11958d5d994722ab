#include "engine/verify.h"

#include <algorithm>
#include <cmath>

#include "base/philox.h"

namespace deepinfer {

namespace {

constexpr double kResidualUnit = 0x1p62;

double ProbabilityAt(const Survivors& s, size_t index) {
  return static_cast<double>(s.weights[index]) / static_cast<double>(s.total);
}

double ProbabilityOf(const Survivors& s, int32_t id) {
  const auto found = std::lower_bound(s.ids.begin(), s.ids.end(), id);
  if (found == s.ids.end() || *found != id) return 0.0;
  return ProbabilityAt(s, static_cast<size_t>(found - s.ids.begin()));
}

uint64_t BitsFor(uint64_t seed, uint64_t position, RandomPurpose purpose, int32_t index = 0) {
  return RandomBits(RandomBlock(seed, position, purpose, static_cast<uint32_t>(index)));
}

}  // namespace

Result<Verification> VerifyByEquality(std::span<const int32_t> drafts,
                                      const std::function<Result<int32_t>(int32_t k)>& target) {
  Verification result;
  const auto num_drafts = static_cast<int32_t>(drafts.size());
  while (true) {
    DI_ASSIGN_OR_RETURN(result.token, target(result.num_accepted + 1));
    if (result.num_accepted == num_drafts) return result;
    if (drafts[static_cast<size_t>(result.num_accepted)] != result.token) return result;
    ++result.num_accepted;
  }
}

Result<Verification> VerifyByRejection(std::span<const int32_t> drafts,
                                       std::span<const Survivors> q,
                                       const std::function<Result<Survivors>(int32_t k)>& target,
                                       uint64_t seed, uint64_t first_position) {
  Verification result;
  for (size_t i = 0; i < drafts.size(); ++i) {
    const uint64_t position = first_position + i;
    DI_ASSIGN_OR_RETURN(const Survivors p, target(static_cast<int32_t>(i) + 1));
    if (!AcceptsDraft(p, q[i], drafts[i], BitsFor(seed, position, RandomPurpose::kAccept))) {
      result.token =
          DrawCdf(ResidualOf(p, q[i]), BitsFor(seed, position, RandomPurpose::kResidual));
      return result;
    }
    ++result.num_accepted;
  }
  // Drafts that were not verified do not matter here: a cut is not a rejection.
  DI_ASSIGN_OR_RETURN(const Survivors p, target(result.num_accepted + 1));
  result.token = DrawCdf(p, BitsFor(seed, first_position + drafts.size(), RandomPurpose::kSample));
  return result;
}

int32_t DrawDraft(const Survivors& q, uint64_t seed, uint64_t position, int32_t k) {
  return DrawCdf(q, BitsFor(seed, position, RandomPurpose::kDraft, k));
}

bool AcceptsDraft(const Survivors& p, const Survivors& q, int32_t draft, uint64_t bits) {
  return UniformFromBits(bits) * ProbabilityOf(q, draft) < ProbabilityOf(p, draft);
}

Survivors ResidualOf(const Survivors& p, const Survivors& q) {
  Survivors residual;
  size_t j = 0;
  for (size_t i = 0; i < p.ids.size(); ++i) {
    while (j < q.ids.size() && q.ids[j] < p.ids[i]) ++j;
    const bool shared = j < q.ids.size() && q.ids[j] == p.ids[i];
    const double rest = ProbabilityAt(p, i) - (shared ? ProbabilityAt(q, j) : 0.0);
    const auto weight = static_cast<uint64_t>(std::nearbyint(std::max(rest, 0.0) * kResidualUnit));
    if (weight == 0) continue;
    residual.ids.push_back(p.ids[i]);
    residual.weights.push_back(weight);
    residual.total += weight;
  }
  return residual.ids.empty() ? p : residual;
}

}  // namespace deepinfer
