#include "engine/speculation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "sched/verify_length.h"

namespace deepinfer {

namespace {

// Weight of one step in running means of a request: about its last ten steps.
constexpr double kSmoothing = 0.1;
// Verifications before a request is judged: as many as its running mean remembers.
constexpr int32_t kMinVerifications = 10;
// A request without drafts tries them again after so many tokens (dspark.md §6).
constexpr int32_t kRetryTokens = 64;

void Smooth(double value, bool is_first, double* mean) {
  *mean = is_first ? value : *mean + kSmoothing * (value - *mean);
}

// Time of a step with these prefill rows and this many decode rows at mean_position.
double StepUs(const EngineState& state, const StepRows& prefill, int64_t mean_position,
              int64_t num_decode_rows) {
  StepRows rows = prefill;
  state.cost().AddDecode(mean_position, num_decode_rows, &rows);
  return state.step_time.Predict(rows);
}

// What stage 1 knows about the next drafts of an item.
std::vector<double> EarlierSurvivals(const StepItem& item) {
  const DraftHistory& h = item.sequence->drafts;
  const auto most = static_cast<size_t>(item.max_drafts);
  if (h.survivals.empty() || h.tokens_since >= kRetryTokens) {
    return std::vector<double>(most, 1.0);
  }
  // Without drafts in the last step the round before them is no better guess than any other.
  std::vector<double> survivals = h.tokens_since == 0 ? h.survivals : h.mean_survivals;
  survivals.resize(std::min(survivals.size(), most));
  return survivals;
}

}  // namespace

Status ValidateSpeculation(const ModelConfig& config, const SpeculationOptions& o) {
  const auto block = static_cast<size_t>(config.dspark.block_size);
  const auto& t = o.confidence_temperatures;
  if (o.draft_tokens < 0 || o.draft_tokens > static_cast<int32_t>(kMaxDraftTokens)) {
    return InvalidRequest("draft_tokens must be 0 to " + std::to_string(kMaxDraftTokens));
  }
  if (!(o.confidence_threshold >= 0.0 && o.confidence_threshold <= 1.0)) {
    return InvalidRequest("confidence_threshold must be 0 to 1");
  }
  const bool positive =
      std::all_of(t.begin(), t.end(), [](double x) { return std::isfinite(x) && x > 0.0; });
  if (!positive || (!t.empty() && config.dspark.num_layers > 0 && t.size() != block)) {
    return InvalidRequest("confidence_temperatures must be " + std::to_string(block) +
                          " positive numbers, one for each draft of a block");
  }
  return OkStatus();
}

int32_t MaxDrafts(const EngineState& state, const Sequence& s) {
  if (state.max_drafts == 0 || state.options.speculation.verify != VerifyPolicy::kScheduled) {
    return state.max_drafts;
  }
  const auto batch = static_cast<int64_t>(std::max<size_t>(1, state.active.size()));
  // A request without a record of its own is judged by that of all, so that a model or a machine on
  // which drafts do not pay is not tried anew by every request.
  const DraftHistory& h = s.drafts;
  const bool has_record = h.num_verifications >= kMinVerifications;
  const int64_t record = has_record ? h.num_verifications : state.statistics.drafts;
  const bool retries = has_record ? h.tokens_since >= kRetryTokens
                                  : state.tokens_since_draft >= kRetryTokens * batch;
  if (record < kMinVerifications || retries) return state.max_drafts;

  // Its share of a step of all that decode now.
  const double plain_us = StepUs(state, {}, s.launched, batch);
  const auto more = static_cast<int64_t>(std::lround(std::max(1.0, state.mean_verified)));
  const double more_us = StepUs(state, {}, s.launched, batch + more) - plain_us;
  const double share = 1.0 / static_cast<double>(batch);
  const bool pays =
      IsDraftingWorthwhile(has_record ? h.mean_accepted : state.mean_accepted, plain_us * share,
                           state.draft_time.Predict(batch) * share, plain_us * share + more_us);
  return pays || plain_us <= 0.0 ? state.max_drafts : 0;
}

int32_t UsualDrafts(const EngineState& state) {
  return static_cast<int32_t>(std::lround(state.mean_verified));
}

int64_t PlanDrafts(const EngineState& state, const StepJob& job) {
  if (state.options.speculation.verify != VerifyPolicy::kScheduled) {
    return std::numeric_limits<int64_t>::max();
  }
  std::vector<DraftSurvivals> earlier;
  int64_t num_emitting = 0, num_drafting = 0, positions = 0;
  for (const StepItem& item : job.items) {
    num_emitting += item.decides_token;
    if (!item.is_decode) continue;
    num_drafting += item.max_drafts > 0;
    positions += item.rows.start;
    earlier.push_back({item.sequence->id, EarlierSurvivals(item)});
  }
  if (num_drafting == 0) return 0;
  const auto num_decode = static_cast<int64_t>(earlier.size());
  const double draft_us = state.draft_time.Predict(num_drafting);
  const auto rate = [&](int64_t num_rows) {
    const int64_t decode_rows = num_rows - job.rows.prefill_rows;
    const double us = StepUs(state, job.rows, positions / num_decode, decode_rows) +
                      (decode_rows > num_decode ? draft_us : 0.0);
    // Where no time is known all rows cost the same.
    return us > 0.0 ? 1.0 / us : 1.0;
  };
  return PlanDraftBudget(earlier, num_emitting, job.rows.prefill_rows, rate).num_drafts;
}

void ObserveStepDrafts(EngineState& state, StepJob* job) {
  int64_t num_drafted = 0;
  for (const StepItem& item : job->items) {
    if (!item.is_decode || !item.ran) continue;
    num_drafted += !item.drafts.ids.empty();
    state.cost().AddDecode(item.rows.start, item.rows.num_rows, &job->rows);
  }
  if (job->draft_us > 0) {
    state.draft_time.Observe(num_drafted, static_cast<double>(job->draft_us));
  }
}

void ObserveDrafts(EngineState& state, const StepItem& item) {
  Sequence& s = *item.sequence;
  DraftHistory& h = s.drafts;
  h.tokens_since += static_cast<int32_t>(item.tokens.size());
  state.tokens_since_draft += static_cast<int64_t>(item.tokens.size());
  if (item.drafts.ids.empty()) return;
  h.tokens_since = 0;
  state.tokens_since_draft = 0;
  h.survivals = SurvivalsOf(item.drafts.confidence);
  for (size_t k = 0; k < h.survivals.size(); ++k) {
    const bool is_first = k >= h.mean_survivals.size();
    if (is_first) h.mean_survivals.push_back(0.0);
    Smooth(h.survivals[k], is_first, &h.mean_survivals[k]);
  }
  Smooth(item.num_verified, state.statistics.drafts == 0, &state.mean_verified);
  if (item.num_verified == 0) return;
  Smooth(item.num_accepted, h.num_verifications++ == 0, &h.mean_accepted);
  Smooth(item.num_accepted, state.statistics.drafts == 0, &state.mean_accepted);
  s.counters.drafted_tokens += item.num_verified;
  s.counters.draft_accepted_tokens += item.num_accepted;

  EngineStatistics& st = state.statistics;
  ++st.drafts;
  st.draft_tokens += item.num_verified;
  st.draft_accepted += item.num_accepted;
  st.draft_accept_length.Observe(item.num_accepted);
  for (int32_t k = 0; k < item.num_verified; ++k) {
    const auto i = static_cast<size_t>(k);
    const bool accepted = k < item.num_accepted;
    ++st.draft_verified_by_position[i];
    st.draft_accepted_by_position[i] += accepted;
    // Behind the first refused draft nothing was judged.
    if (k > item.num_accepted) continue;
    st.draft_confidence_error.Observe(std::abs(item.drafts.confidence[i] - (accepted ? 1.0 : 0.0)));
  }
}

}  // namespace deepinfer
