#include "engine/drafter.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "engine/statistics.h"
#include "sched/verify_calibration.h"

namespace deepinfer {

namespace {

// Rows of a sequence that wait for the draft rings: so many cost little more than one, and the
// operators of a single row cost a step without drafts several percent of its time.
constexpr int32_t kMostPendingRows = 32;

}  // namespace

struct Drafter::Candidate {
  StepItem* item;
  int32_t max_drafts;
  size_t row;  // its place in the draft pass
  bool open = true;
};

Drafter::Drafter(const Model& model, const SpeculationOptions& options)
    : config_(model.config()),
      max_positions_(model.max_positions()),
      options_(options),
      draft_model_(model) {}

int32_t Drafter::MaxDrafts(const ModelConfig& config, const SpeculationOptions& options) {
  if (!options.enabled || config.dspark.num_layers == 0) return 0;
  return std::min(
      {options.draft_tokens, config.dspark.block_size, static_cast<int32_t>(kMaxDraftTokens)});
}

bool Drafter::CanDraft(const StepItem& item) const {
  return item.is_decode && item.ran && item.max_drafts > 0 && !item.sequence->device.drafts_fail &&
         item.rows.start + config_.dspark.block_size <= max_positions_;
}

double Drafter::Calibrated(float raw, int32_t k) const {
  const auto& t = options_.confidence_temperatures;
  return CalibratedConfidence(static_cast<double>(raw),
                              t.empty() ? 1.0 : t[static_cast<size_t>(k)]);
}

double Drafter::Acceptance(double confidence, const StepItem& item) const {
  if (options_.verify != VerifyPolicy::kScheduled) return confidence;
  return 0.5 * (confidence + item.acceptance_rate);
}

void Drafter::Draft(std::span<StepItem> items, const VerifyBudget& budget, SideWork* masks,
                    DecisionContext* context) {
  if (budget.most_drafts <= 0) return;
  std::vector<Candidate> candidates;
  std::vector<DraftSequence> sequences;
  int32_t most = 0;
  for (StepItem& item : items) {
    if (!CanDraft(item)) continue;
    const SequenceStep& r = item.rows;
    candidates.push_back(
        {&item, std::min(item.max_drafts, MaxDrafts(config_, options_)), candidates.size()});
    const int32_t kept_from = std::max(r.decoder_from, item.sequence->device.context.kept_from);
    sequences.push_back({r.tokens[r.start], r.start, kept_from, r.slot});
    most = std::max(most, candidates.back().max_drafts);
  }
  if (candidates.empty() || !InjectPending(candidates).ok()) return;
  most = static_cast<int32_t>(std::min<int64_t>(most, budget.most_drafts));
  if (!draft_model_.Draft(sequences, most, &rows_).ok()) return;
  for (Candidate& c : candidates) c.open = rows_.status[c.row].ok();
  masks->Finish();
  Propose(candidates, budget, context);

  const std::vector<int32_t> lengths = AdmitDrafts(CurrentSurvivals(candidates), budget).lengths;
  for (const Candidate& c : candidates) {
    StepItem& item = *c.item;
    const bool forced = !item.sequence->request.forced_accepts.empty();
    item.num_verified = forced ? static_cast<int32_t>(item.drafts.ids.size()) : lengths[c.row];
    item.rows.num_rows = 1 + item.num_verified;
    std::copy_n(item.drafts.ids.begin(), item.num_verified,
                item.sequence->device.tokens.get() + item.rows.start + 1);
  }
}

void Drafter::Propose(std::span<Candidate> candidates, const VerifyBudget& budget,
                      DecisionContext* context) {
  std::vector<int32_t> previous;
  for (const Candidate& c : candidates) {
    previous.push_back(c.item->rows.tokens[c.item->rows.start]);
  }
  for (int32_t k = 0; k < rows_.num_drafts; ++k) {
    for (Candidate& c : candidates) c.open = c.open && k < c.max_drafts;
    if (k > 0) CloseHopeless(candidates, budget);
    if (std::none_of(candidates.begin(), candidates.end(), [](const auto& c) { return c.open; })) {
      return;
    }
    if (!draft_model_.Propose(rows_, k, previous, &proposal_).ok()) return;
    for (Candidate& c : candidates) {
      if (!c.open) continue;
      c.open = Draw(k, &c, context);
      if (!c.item->drafts.ids.empty()) previous[c.row] = c.item->drafts.ids.back();
    }
  }
}

std::vector<DraftSurvivals> Drafter::CurrentSurvivals(std::span<const Candidate> candidates) {
  std::vector<DraftSurvivals> survivals;
  for (const Candidate& c : candidates) {
    survivals.push_back({c.item->sequence->id, SurvivalsOf(c.item->drafts.acceptance)});
  }
  return survivals;
}

void Drafter::CloseHopeless(std::span<Candidate> candidates, const VerifyBudget& budget) {
  const std::vector<DraftSurvivals> current = CurrentSurvivals(candidates);
  double least = AdmitDrafts(current, budget).least_survival;
  std::vector<double> all;
  for (const DraftSurvivals& r : current) {
    all.insert(all.end(), r.survivals.begin(), r.survivals.end());
  }
  if (static_cast<int64_t>(all.size()) >= budget.most_drafts) {
    const auto last = all.begin() + static_cast<std::ptrdiff_t>(budget.most_drafts - 1);
    std::nth_element(all.begin(), last, all.end(), std::greater<>());
    least = std::max(least, *last);
  }
  for (Candidate& c : candidates) {
    // A later draft survives no better than the one before it, and ties go to earlier drafts.
    const bool forced = !c.item->sequence->request.forced_accepts.empty();
    c.open = c.open && (forced || current[c.row].survivals.back() > least);
  }
}

bool Drafter::Draw(int32_t k, Candidate* c, DecisionContext* context) {
  StepItem& item = *c->item;
  DraftBlock& drafts = item.drafts;
  const auto vocab = static_cast<size_t>(config_.vocab_size);
  const std::span logits = std::span(proposal_.logits).subspan(c->row * vocab, vocab);
  // Known before the draft is drawn, so that cutting by it leaks nothing about its token.
  const float raw = proposal_.confidence[c->row];
  const double confidence = Calibrated(raw, k);
  if (!std::isfinite(confidence)) return false;
  if (options_.verify == VerifyPolicy::kThreshold && confidence < options_.confidence_threshold) {
    return false;
  }
  const Result<SampleRow> row =
      PendingRow(*item.sequence, logits, item.rows.start + 1 + k, drafts.ids, context);
  if (!row.ok()) return false;
  Survivors q;
  const Result<int32_t> id =
      item.sequence->device.sampler->Draft(*row, k + 1, &context->scratch, &q);
  if (!id.ok()) return false;
  const bool forced = !item.sequence->request.forced_accepts.empty() && row->forced_id >= 0;
  drafts.ids.push_back(forced ? row->forced_id : *id);
  drafts.q.push_back(std::move(q));
  drafts.raw_confidence.push_back(raw);
  drafts.confidence.push_back(confidence);
  drafts.acceptance.push_back(Acceptance(confidence, item));
  // Nothing follows a token that ends the answer.
  const auto num_drafts = static_cast<int32_t>(drafts.ids.size());
  int32_t stop_token_id = -1;
  return EndAfterToken(item.sequence->request, context->rule,
                       item.sequence->device.num_decided + num_drafts, drafts.ids.back(),
                       &stop_token_id) == FinishReason::kNone;
}

Status Drafter::InjectPending(std::span<const Candidate> candidates) {
  std::vector<DraftContext> contexts;
  for (const Candidate& c : candidates) {
    const PendingContext& pending = c.item->sequence->device.context;
    if (pending.num_rows == 0) continue;
    contexts.push_back({pending.rows.data(), pending.start, pending.num_rows, c.item->rows.slot});
  }
  if (!contexts.empty()) DI_RETURN_IF_ERROR(draft_model_.InjectContext(contexts));
  for (const Candidate& c : candidates) c.item->sequence->device.context.num_rows = 0;
  return OkStatus();
}

Status Drafter::Keep(std::span<const StepItem> items, std::span<const float> main_hidden) {
  const auto width = config_.dspark.target_layer_ids.size() * static_cast<size_t>(config_.dim);
  std::vector<DraftContext> contexts;
  std::vector<PendingContext*> emptied;
  const float* hidden = main_hidden.data();
  for (const StepItem& item : items) {
    if (!item.ran) continue;
    const SequenceStep& r = item.rows;
    const int32_t start = std::max(r.start, r.decoder_from);
    const int32_t num_rows = r.cut_out != nullptr ? 0 : std::max(0, item.end() - start);
    const int32_t num_committed = item.is_decode ? item.num_committed : num_rows;
    PendingContext& pending = item.sequence->device.context;
    if (num_committed > 0 && item.status.ok()) {
      if (!item.is_decode) {
        // Rows of a prompt, or those of a lost image run again.
        pending.num_rows = 0;
        contexts.push_back({hidden, start, num_committed, r.slot});
      } else {
        Append(hidden, start, num_committed, &pending);
        if (pending.num_rows >= kMostPendingRows) {
          contexts.push_back({pending.rows.data(), pending.start, pending.num_rows, r.slot});
          emptied.push_back(&pending);
        }
      }
    }
    hidden += static_cast<size_t>(num_rows) * width;
  }
  if (contexts.empty()) return OkStatus();
  const Status status = draft_model_.InjectContext(contexts);
  for (PendingContext* p : emptied) p->num_rows = 0;
  return status;
}

void Drafter::Forget(std::span<const StepItem> items) {
  for (const StepItem& item : items) {
    if (!item.ran) continue;
    PendingContext& context = item.sequence->device.context;
    context.num_rows = 0;
    context.kept_from = item.is_decode ? item.rows.start + item.num_committed
                                       : item.rows.start + item.rows.num_rows;
  }
}

void Drafter::Append(const float* hidden, int32_t start, int32_t num_rows,
                     PendingContext* pending) const {
  const auto width = config_.dspark.target_layer_ids.size() * static_cast<size_t>(config_.dim);
  // A step that failed left a gap: what lies before it is older than what the window will need.
  if (pending->start + pending->num_rows != start) pending->num_rows = 0;
  if (pending->num_rows == 0) pending->start = start;
  pending->rows.resize(static_cast<size_t>(pending->num_rows) * width);
  pending->rows.insert(pending->rows.end(), hidden, hidden + static_cast<size_t>(num_rows) * width);
  pending->num_rows += num_rows;
}

}  // namespace deepinfer
