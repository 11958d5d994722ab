#include "engine/speculation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

namespace deepinfer {

namespace {

// Least weight of an item in the running mean of verified drafts.
constexpr double kSmoothing = 0.01;
// So many tries come before anybody judges: the first passes tell what drafts cost.
constexpr int64_t kFreeTries = 10;
// Before a try so many tokens leave their hidden rows: enough context for a fair one, little enough
// to cost nothing that counts.
constexpr int64_t kContextTokens = 16;
// The first steps of a run of drafting ones find cold caches, and drafts behind a try know little
// of the text: what they make says nothing about those that would follow.
constexpr int64_t kSettlingSteps = 8;

bool IsScheduled(const EngineState& state) {
  return state.max_drafts > 0 && state.options.speculation.verify == VerifyPolicy::kScheduled;
}

// Times of steps of these prefill rows and a number of decode rows at one position. Whether drafts
// pay is decided by differences of a few percent, so measured sizes count more than the model.
class StepPrices {
 public:
  StepPrices(const EngineState& state, const StepRows& prefill, int64_t position)
      : state_(state), prefill_(prefill) {
    state.cost().AddDecode(position, 1, &row_);
  }

  double operator()(int64_t num_decode_rows) const {
    const int64_t measured = state_.decode_time.Nearest(num_decode_rows);
    if (prefill_.prefill_rows > 0 || measured == 0) return Model(num_decode_rows);
    const double us = state_.decode_time.Predict(measured);
    if (measured == num_decode_rows) return us;
    // The model tells the difference: at least none, at most in proportion to the rows.
    const double in_proportion =
        us * static_cast<double>(num_decode_rows) / static_cast<double>(measured);
    return std::clamp(us + Model(num_decode_rows) - Model(measured), std::min(us, in_proportion),
                      std::max(us, in_proportion));
  }

 private:
  double Model(int64_t num_decode_rows) const {
    const auto num = static_cast<double>(num_decode_rows);
    StepRows rows = prefill_;
    rows.decode_rows += num_decode_rows;
    rows.decode_context += num * row_.decode_context;
    rows.max_context = std::max(rows.max_context, row_.max_context);
    rows.flops += num * row_.flops;
    return state_.step_time.Predict(rows);
  }

  const EngineState& state_;
  const StepRows prefill_;
  StepRows row_;
};

bool Decodes(const Sequence& s) {
  return !IsTerminal(s.state) && s.state != SequenceState::kParking &&
         s.launched >= s.prefill_end() && s.schedule.stalled_since_us == 0;
}

// Drafts that the sequence may still verify.
int32_t DraftsLeft(const EngineState& state, const Sequence& s) {
  const int32_t left = std::min(s.request.sampling.max_tokens - s.num_expected(),
                                state.options.max_model_len - s.launched);
  return std::clamp(left - 1, 0, state.max_drafts);
}

// Whether a request that ends its prompt now would draft.
bool NewRequestDrafts(const EngineState& state, const std::vector<DraftCandidate>& others,
                      const StepPrices& step_us, const WorkTime& draft_us) {
  std::vector<DraftCandidate> candidates = others;
  for (DraftCandidate& c : candidates) c.most_drafts = 0;
  candidates.push_back({0, AcceptanceRate({}, state.drafting.counts), state.max_drafts, false});
  return !ChooseDrafting(candidates, step_us, draft_us, 0.0, state.drafting.yield.factor())
              .request_ids.empty();
}

// Rows of a planned item may also be for tokens that a grammar forces.
int32_t DraftsOf(const StepItem& item) {
  return item.is_decode && item.may_draft ? item.max_drafts : 0;
}

// What stage 1 expects of the next drafts of an item. Without history every draft counts.
std::vector<double> EarlierSurvivals(const StepItem& item) {
  const DraftHistory& h = item.sequence->drafts;
  const bool is_new = h.record.counts.accepted + h.record.counts.refused == 0.0;
  return ExpectedSurvivals(is_new ? 1.0 : item.acceptance_rate, DraftsOf(item));
}

double Mean(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double v : values) sum += v;
  return sum / static_cast<double>(values.size());
}

// Learns from the drafts of an item.
void NoteDrafts(const StepItem& item, DraftingState* all, DraftRecord* own) {
  const double weight = std::max(kSmoothing, 1.0 / static_cast<double>(++all->num_drafted));
  all->mean_verified += weight * (item.num_verified - all->mean_verified);
  const DraftTry& t = item.draft_try;
  own->tokens_since = 0;
  own->mean_confidence = Mean(item.drafts.confidence);
  // Where none was worth its row, what was thought of the first one stands for what was not seen.
  double accepted = item.drafts.acceptance.front(), refused = 1.0 - accepted;
  if (item.num_verified > 0) {
    accepted = item.num_accepted;
    // Behind a token that ended the answer nothing was judged.
    const bool judged_next = item.tokens.size() > static_cast<size_t>(item.num_accepted);
    refused = item.num_accepted < item.num_verified && judged_next ? 1.0 : 0.0;
    // Tries know little of the text before them, so fewer of their drafts are accepted.
    if (!t.is_try || t.is_free) NoteVerification(accepted, refused, kTotalMemory, &all->counts);
  }
  NoteVerification(accepted, refused, kRequestMemory, &own->counts);
  if (!t.is_try) return;
  const double gained_us = item.num_accepted * t.token_us - item.num_verified * t.row_us;
  all->allowance.GiveBack(gained_us, t.pass_us);
  if (gained_us > t.pass_us) NoteTryPaid(own);
}

// Books what an item of a planned step takes from later ones.
void BookDrafting(StepItem* item, DraftingState* all) {
  DraftTry& t = item->draft_try;
  if (DraftsOf(*item) == 0) {
    t = {};
    return;
  }
  DraftRecord& own = item->sequence->drafts.record;
  NoteDrafting(t.is_try, &own);
  if (!t.is_try) return;
  if (!t.is_free) return all->allowance.Spend(t.pass_us);
  ++all->num_free_tries;
  NoteTryPaid(&own);
}

// Whether nobody made the drafts of a try: its request ended before, or tokens were known already.
bool DidNotTry(const StepItem& item) {
  return item.draft_try.is_try && (!item.ran || item.max_drafts == 0);
}

void TakeBackTry(const StepItem& item, DraftingState* all) {
  const DraftTry& t = item.draft_try;
  if (t.is_free) {
    --all->num_free_tries;
  } else {
    all->allowance.GiveBack(t.pass_us, t.pass_us);
    TakeBackTry(&item.sequence->drafts.record);
  }
}

// Compares what a step made with what was expected of it.
void NoteYield(const StepJob& job, int64_t num_drafted, double us, DraftYield* yield) {
  double tokens = 0;
  bool may_draft = false;
  for (const StepItem& item : job.items) {
    if (!item.ran) return;  // less was done than planned
    tokens += static_cast<double>(item.tokens.size());
    may_draft = may_draft || item.may_draft;
  }
  if (num_drafted > 0) {
    yield->NoteDrafting(job.expected, tokens, us);
  } else if (!may_draft) {
    yield->NoteResting(job.expected, tokens, us);
  }
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
  return !IsScheduled(state) || s.drafts.may_draft ? state.max_drafts : 0;
}

int32_t UsualDrafts(const EngineState& state) {
  return static_cast<int32_t>(std::lround(state.drafting.mean_verified));
}

void ChooseDrafters(EngineState& state) {
  if (!IsScheduled(state)) return;
  std::vector<DraftCandidate> candidates;
  int64_t positions = 0;
  bool try_is_near = false, prompt_ends = false;
  for (Sequence* s : state.active) {
    s->drafts.may_draft = false;
    s->drafts.draft_try = {};
    if (IsTerminal(s->state)) continue;
    try_is_near = try_is_near || IsTryDue(s->drafts.record, kContextTokens);
    prompt_ends = prompt_ends || s->launched < s->prefill_end();
    if (!Decodes(*s)) continue;
    const DraftRecord& own = s->drafts.record;
    candidates.push_back({s->id, AcceptanceRate(own, state.drafting.counts), DraftsLeft(state, *s),
                          IsTryDue(own, 0)});
    positions += s->launched;
  }
  const auto num_requests = static_cast<int64_t>(candidates.size());
  const StepPrices step_us(state, {}, num_requests == 0 ? 0 : positions / num_requests);
  const WorkTime draft_us = [&](int64_t num) { return state.draft_time.Predict(num); };
  DraftingState& d = state.drafting;
  const bool is_free = d.num_free_tries < kFreeTries;
  const DraftChoice choice = ChooseDrafting(
      candidates, step_us, draft_us,
      is_free ? std::numeric_limits<double>::max() : d.allowance.us(), d.yield.factor());
  d.next = choice.step;
  d.num_requests = num_requests;
  for (const int64_t id : choice.request_ids) {
    DraftHistory& h = state.Find(id)->drafts;
    h.may_draft = true;
    h.draft_try = {choice.is_try, choice.is_try && is_free, choice.try_us, 0.0, choice.token_us};
  }
  const double soon_us =
      d.allowance.us() + TryAllowance::Earned(step_us(num_requests), kContextTokens);
  d.keeps_context = !choice.request_ids.empty() || (try_is_near && soon_us >= choice.try_us) ||
                    (prompt_ends && NewRequestDrafts(state, candidates, step_us, draft_us));
}

void PlanDrafts(EngineState& state, StepJob* job) {
  if (!IsScheduled(state)) {
    job->verify.most_drafts = std::numeric_limits<int64_t>::max();
    return;
  }
  job->keeps_context = state.drafting.keeps_context;
  VerifyBudget& budget = job->verify;
  std::vector<DraftSurvivals> earlier;
  int64_t num_drafting = 0, most_drafts = 0, positions = 0;
  DraftTry* trying = nullptr;
  for (StepItem& item : job->items) {
    budget.num_emitting += item.decides_token;
    if (!item.is_decode) continue;
    const Sequence& s = *item.sequence;
    item.acceptance_rate = AcceptanceRate(s.drafts.record, state.drafting.counts);
    num_drafting += DraftsOf(item) > 0;
    most_drafts += DraftsOf(item);
    BookDrafting(&item, &state.drafting);
    if (item.draft_try.is_try) trying = &item.draft_try;
    positions += item.rows.start;
    earlier.push_back({s.id, EarlierSurvivals(item)});
  }
  const auto num_decode = static_cast<int64_t>(earlier.size());
  const DraftingState& d = state.drafting;
  if (job->rows.prefill_rows == 0 && num_decode == d.num_requests) job->expected = d.next;
  if (num_drafting == 0) return;
  const StepPrices step_us(state, job->rows, positions / num_decode);
  const double plain_us = step_us(num_decode);
  if (plain_us <= 0.0 || (trying != nullptr && trying->is_free)) {
    // To learn what rows cost.
    budget.most_drafts = most_drafts;
    return;
  }
  const double draft_us = state.draft_time.Predict(num_drafting);
  const auto rate = [&](int64_t num_rows) {
    const int64_t decode_rows = num_rows - job->rows.prefill_rows;
    return 1.0 / (step_us(decode_rows) + (decode_rows > num_decode ? draft_us : 0.0));
  };
  budget.most_drafts =
      trying != nullptr
          ? most_drafts
          : PlanDraftBudget(earlier, budget.num_emitting, job->rows.prefill_rows, rate).num_drafts;
  if (budget.most_drafts == 0) return;
  budget.step_us = plain_us + draft_us;
  budget.row_us = (step_us(num_decode + budget.most_drafts) - plain_us) /
                  static_cast<double>(budget.most_drafts);
  if (trying != nullptr) trying->row_us = budget.row_us;
}

void ObserveStepDrafts(EngineState& state, StepJob* job) {
  int64_t num_drafted = 0;
  for (const StepItem& item : job->items) {
    if (DidNotTry(item)) TakeBackTry(item, &state.drafting);
    if (!item.is_decode || !item.ran) continue;
    num_drafted += !item.drafts.ids.empty();
    state.cost().AddDecode(item.rows.start, item.rows.num_rows, &job->rows);
  }
  if (job->rows.decode_rows == 0) return;
  const auto us = static_cast<double>(job->end_us - job->begin_us - job->draft_us);
  state.drafting.allowance.Earn(us);
  DraftingState& d = state.drafting;
  d.drafted_in_a_row = num_drafted > 0 ? d.drafted_in_a_row + 1 : 0;
  const bool is_settled = num_drafted == 0 || d.drafted_in_a_row > kSettlingSteps;
  if (job->expected.us > 0.0 && is_settled) {
    NoteYield(*job, num_drafted, us + static_cast<double>(job->draft_us), &state.drafting.yield);
  }
  if (job->rows.prefill_rows == 0) state.decode_time.Observe(job->rows.decode_rows, us);
  if (num_drafted == 0) NoteRest(&state.drafting.counts);
  // Behind a step without drafts their weights are in no cache.
  const bool is_cold = d.drafted_in_a_row == 1;
  state.draft_time.Observe(num_drafted, static_cast<double>(job->draft_us), is_cold);
}

void ObserveDrafts(EngineState& state, const StepItem& item) {
  Sequence& s = *item.sequence;
  s.drafts.record.tokens_since += static_cast<int64_t>(item.tokens.size());
  if (item.drafts.ids.empty()) return;
  NoteDrafts(item, &state.drafting, &s.drafts.record);
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
