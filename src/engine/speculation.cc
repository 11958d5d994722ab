#include "engine/speculation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "sched/verify_length.h"

namespace deepinfer {

namespace {

// Least weight of a new value in running means: they remember about the last ten steps of a request
// and the last hundred of all.
constexpr double kRequestSmoothing = 0.1;
constexpr double kTotalSmoothing = 0.01;
// Verifications of all requests before drafting is judged.
constexpr int64_t kMinVerifications = 10;
// A request's own mean weighs as many verifications as it has, at most what it remembers; the mean
// of all weighs so many.
constexpr double kPriorVerifications = 5;
constexpr double kMostOwnVerifications = 20;
// Without drafts they are tried again after so many tokens, and after twice as many with every try
// in vain (dspark.md §6): a try costs about as much as a step.
constexpr int64_t kRetryTokens = 64;
constexpr int64_t kMostRetryTokens = 2048;
// So many requests of a batch try: what a try costs grows with them.
constexpr size_t kTryingRequests = 2;
// Before a try so many tokens leave their hidden rows: enough context for a fair one.
constexpr int64_t kContextTokens = 32;

void Smooth(double value, int64_t num_before, double least_weight, double* mean) {
  *mean += std::max(least_weight, 1.0 / static_cast<double>(num_before + 1)) * (value - *mean);
}

// Time of a step with these prefill rows and this many decode rows at mean_position. Whether drafts
// pay is decided by differences of a few percent, so measured sizes count more than the model.
double StepUs(const EngineState& state, const StepRows& prefill, int64_t mean_position,
              int64_t num_decode_rows) {
  if (prefill.prefill_rows == 0 && state.decode_time.Covers(num_decode_rows)) {
    return state.decode_time.Predict(num_decode_rows);
  }
  StepRows rows = prefill;
  state.cost().AddDecode(mean_position, num_decode_rows, &rows);
  return state.step_time.Predict(rows);
}

int64_t BatchOf(const EngineState& state) {
  return static_cast<int64_t>(std::max<size_t>(1, state.active.size()));
}

// Whether so many accepted drafts are worth their time in a step of all that decode now.
bool Pays(const EngineState& state, double mean_accepted, int64_t position) {
  const int64_t batch = BatchOf(state);
  const double plain_us = StepUs(state, {}, position, batch);
  if (plain_us <= 0.0) return true;
  const auto more = std::llround(std::max(1.0, state.draft_record.mean_verified));
  const double more_us = StepUs(state, {}, position, batch + more) - plain_us;
  const double share = 1.0 / static_cast<double>(batch);
  return IsDraftingWorthwhile(mean_accepted, plain_us * share,
                              state.draft_time.Predict(batch) * share, plain_us * share + more_us);
}

bool Retries(const DraftRecord& record, int64_t num_requests) {
  return record.tokens_since >= std::max(kRetryTokens, record.retry_tokens) * num_requests;
}

// Books that drafts were made.
void NoteDrafts(bool pays, int64_t num_requests, DraftRecord* record) {
  if (pays) {
    record->retry_tokens = 0;
  } else if (record->tokens_since >= kRetryTokens * num_requests) {
    record->retry_tokens =
        std::min(2 * std::max(kRetryTokens, record->retry_tokens), kMostRetryTokens);
  }
  record->tokens_since = 0;
}

void NoteConfidence(std::span<const double> confidence, double least_weight, DraftRecord* record) {
  for (size_t k = 0; k < confidence.size(); ++k) {
    const bool is_first = k >= record->mean_confidence.size();
    if (is_first) record->mean_confidence.push_back(0.0);
    Smooth(confidence[k], is_first ? 0 : record->num_drafted, least_weight,
           &record->mean_confidence[k]);
  }
}

void NoteVerified(const StepItem& item, double least_weight, DraftRecord* record) {
  NoteConfidence(item.drafts.confidence, least_weight, record);
  Smooth(item.num_verified, record->num_drafted++, least_weight, &record->mean_verified);
  if (item.num_verified == 0) return;
  Smooth(item.num_accepted, record->num_verifications++, least_weight, &record->mean_accepted);
}

// Accepted drafts that a request can expect. New requests are judged by the record of all, so that
// a model or a machine on which drafts do not pay is not tried anew by every one.
double ExpectedAccepted(const EngineState& state, const DraftRecord& own) {
  const double weight = std::min(static_cast<double>(own.num_verifications), kMostOwnVerifications);
  return (weight * own.mean_accepted + kPriorVerifications * state.draft_record.mean_accepted) /
         (weight + kPriorVerifications);
}

// Rows of a planned item may also be for tokens that a grammar forces.
int32_t DraftsOf(const EngineState& state, const StepItem& item) {
  return item.is_decode ? std::min(item.max_drafts, MaxDrafts(state, *item.sequence)) : 0;
}

// What stage 1 knows about the next drafts of an item.
std::vector<double> EarlierSurvivals(const EngineState& state, const StepItem& item) {
  const DraftHistory& h = item.sequence->drafts;
  const auto most = static_cast<size_t>(DraftsOf(state, item));
  if (h.record.num_drafted == 0 || Retries(h.record, 1)) return std::vector<double>(most, 1.0);
  // Without drafts in the last step the round before them is no better guess than any other.
  std::vector<double> survivals;
  if (h.record.tokens_since == 0) survivals = h.survivals;
  survivals.resize(std::min(survivals.size(), most));
  // Drafts that were not made are guessed from those that were.
  const std::vector<double>& own = h.record.mean_confidence;
  const std::vector<double>& all = state.draft_record.mean_confidence;
  while (survivals.size() < most) {
    const size_t k = survivals.size();
    const double confidence = k < own.size() ? own[k] : k < all.size() ? all[k] : 1.0;
    survivals.push_back((k == 0 ? 1.0 : survivals.back()) * confidence);
  }
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
  const DraftRecord& all = state.draft_record;
  if (all.num_verifications < kMinVerifications) return state.max_drafts;
  const DraftRecord& own = s.drafts.record;
  const bool pays = Pays(state, ExpectedAccepted(state, own), s.launched);
  if (Pays(state, all.mean_accepted, s.launched)) {
    return pays || Retries(own, 1) ? state.max_drafts : 0;
  }
  // Where drafts do not pay in general, only requests that know better make them, and a few of all
  // try again.
  const bool knows_better = pays && own.num_verifications >= kMinVerifications;
  const auto tries = std::min(state.active.size(), kTryingRequests);
  const bool may_try =
      std::find(state.active.begin(), state.active.begin() + static_cast<std::ptrdiff_t>(tries),
                &s) != state.active.begin() + static_cast<std::ptrdiff_t>(tries);
  return knows_better || (may_try && Retries(all, BatchOf(state))) ? state.max_drafts : 0;
}

bool KeepsContext(const EngineState& state, const StepJob& job) {
  const DraftRecord& all = state.draft_record;
  if (state.options.speculation.verify != VerifyPolicy::kScheduled ||
      all.num_verifications < kMinVerifications) {
    return true;
  }
  int64_t position = 0;
  for (const StepItem& item : job.items) {
    if (DraftsOf(state, item) > 0) return true;
    position = std::max<int64_t>(position, item.rows.start);
  }
  const int64_t pause = std::max(kRetryTokens, all.retry_tokens) - kContextTokens;
  return all.tokens_since >= pause * BatchOf(state) || Pays(state, all.mean_accepted, position);
}

int32_t UsualDrafts(const EngineState& state) {
  return static_cast<int32_t>(std::lround(state.draft_record.mean_verified));
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
    num_drafting += DraftsOf(state, item) > 0;
    positions += item.rows.start;
    earlier.push_back({item.sequence->id, EarlierSurvivals(state, item)});
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
  int64_t num_drafted = 0, position = 0;
  for (const StepItem& item : job->items) {
    if (!item.is_decode || !item.ran) continue;
    num_drafted += !item.drafts.ids.empty();
    position = item.rows.start;
    state.cost().AddDecode(item.rows.start, item.rows.num_rows, &job->rows);
  }
  if (job->rows.prefill_rows == 0) {
    const int64_t us = job->end_us - job->begin_us - job->draft_us;
    state.decode_time.Observe(job->rows.decode_rows, static_cast<double>(us));
  }
  if (num_drafted == 0) return;
  state.draft_time.Observe(num_drafted, static_cast<double>(job->draft_us));
  DraftRecord& all = state.draft_record;
  NoteDrafts(Pays(state, all.mean_accepted, position), BatchOf(state), &all);
}

void ObserveDrafts(EngineState& state, const StepItem& item) {
  Sequence& s = *item.sequence;
  DraftRecord& own = s.drafts.record;
  const auto num_tokens = static_cast<int64_t>(item.tokens.size());
  state.draft_record.tokens_since += num_tokens;
  own.tokens_since += num_tokens;
  if (item.drafts.ids.empty()) return;
  NoteDrafts(Pays(state, ExpectedAccepted(state, own), item.rows.start), 1, &own);
  s.drafts.survivals = SurvivalsOf(item.drafts.confidence);
  NoteVerified(item, kRequestSmoothing, &own);
  NoteVerified(item, kTotalSmoothing, &state.draft_record);
  if (item.num_verified == 0) return;
  if (state.options.speculation.on_verified) {
    const auto num_verified = static_cast<size_t>(item.num_verified);
    state.options.speculation.on_verified(std::span(item.drafts.raw_confidence).first(num_verified),
                                          item.num_accepted);
  }
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
