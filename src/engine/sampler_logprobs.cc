// Log-probabilities (numerics.md §5.6).
#include <algorithm>
#include <limits>

#include "base/det_math.h"
#include "engine/sampler.h"

namespace deepinfer {

namespace {

// Fills logprob and top.
void LogSoftmax(std::span<const float> logits, float max, int32_t id, int32_t num_top,
                DistributionScratch* scratch, TokenLogprobs* out) {
  const double log_sum = static_cast<double>(max) + DetLn(SumExp(logits, max));
  const auto value = [&](int32_t i) {
    return static_cast<float>(static_cast<double>(logits[static_cast<size_t>(i)]) - log_sum);
  };
  out->logprob = value(id);
  out->top.clear();
  for (const int32_t top :
       TopRanks(logits, max, static_cast<size_t>(std::max(num_top, 0)), scratch)) {
    out->top.emplace_back(top, value(top));
  }
}

// Fills logprob and top; removed ids are -inf.
void LogShares(const Survivors& kept, const LogitRow& row, int32_t id, int32_t num_top,
               DistributionScratch* scratch, TokenLogprobs* out) {
  const auto value = [&](int32_t i) {
    const auto at = std::lower_bound(kept.ids.begin(), kept.ids.end(), i);
    if (at == kept.ids.end() || *at != i) return -std::numeric_limits<float>::infinity();
    const auto weight =
        static_cast<double>(kept.weights[static_cast<size_t>(at - kept.ids.begin())]);
    return static_cast<float>(DetLn(weight / static_cast<double>(kept.total)));
  };
  out->logprob = value(id);
  out->top.clear();
  for (const int32_t top :
       TopRanks(row.logits, row.scale.max, static_cast<size_t>(num_top), scratch)) {
    out->top.emplace_back(top, value(top));
  }
}

}  // namespace

TokenLogprobs RawLogprobs(std::span<const float> logits, int32_t id, int32_t num_top) {
  DistributionScratch scratch;
  TokenLogprobs out;
  LogSoftmax(logits, SummarizeRow(logits).max, id, num_top, &scratch, &out);
  return out;
}

void Sampler::ReportRaw(std::span<const float> logits, int32_t id, SamplerScratch* scratch,
                        TokenLogprobs* out) const {
  if (params_.logprobs_kind != LogprobsKind::kRaw) return;
  LogSoftmax(logits, SummarizeRow(logits).max, id, params_.num_top_logprobs, &scratch->distribution,
             out);
}

void Sampler::ReportEdited(std::span<const float> logits, const RowSummary& summary, int32_t id,
                           SamplerScratch* scratch, TokenLogprobs* out) const {
  DistributionScratch* const buffers = &scratch->distribution;
  const LogitRow row = MakeLogitRow(logits, {}, summary, greedy_ ? 1.0f : params_.temperature);
  if (params_.logprobs_kind == LogprobsKind::kProcessed && greedy_) {
    LogSoftmax(logits, summary.max, id, params_.num_top_logprobs, buffers, out);
  } else if (params_.logprobs_kind == LogprobsKind::kProcessed) {
    BuildSurvivors(row, filters(), buffers, &scratch->survivors);
    LogShares(scratch->survivors, row, id, params_.num_top_logprobs, buffers, out);
  }
  if (params_.mass_below) out->mass_below = MassBelow(row, id, buffers);
}

}  // namespace deepinfer
