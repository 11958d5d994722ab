#include "engine/drafter.h"

#include <algorithm>
#include <cmath>

#include "engine/statistics.h"
#include "sched/verify_length.h"

namespace deepinfer {

namespace {

// Keeps the exponential finite (dspark.md §7).
constexpr double kMaxConfidenceLogit = 60.0;

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
  const double temperature = t.empty() ? 1.0 : t[static_cast<size_t>(k)];
  const double z = std::clamp(raw / temperature, -kMaxConfidenceLogit, kMaxConfidenceLogit);
  return 1.0 / (1.0 + std::exp(-z));
}

void Drafter::Draft(std::span<StepItem> items, int64_t max_drafts, DecisionContext* context) {
  if (max_drafts <= 0) return;
  std::vector<Candidate> candidates;
  std::vector<DraftSequence> sequences;
  for (StepItem& item : items) {
    if (!CanDraft(item)) continue;
    const SequenceStep& r = item.rows;
    candidates.push_back(
        {&item, std::min(item.max_drafts, MaxDrafts(config_, options_)), candidates.size()});
    sequences.push_back({r.tokens[r.start], r.start, r.decoder_from, r.slot});
  }
  if (candidates.empty()) return;
  DraftRows rows;
  if (!draft_model_.Draft(sequences, &rows).ok()) return;
  for (Candidate& c : candidates) c.open = rows.status[c.row].ok();
  Propose(rows, candidates, context);

  std::vector<DraftSurvivals> survivals;
  for (const Candidate& c : candidates) {
    survivals.push_back({c.item->sequence->id, SurvivalsOf(c.item->drafts.confidence)});
  }
  std::vector<int32_t> lengths = AllocateDrafts(survivals, max_drafts);
  for (const Candidate& c : candidates) {
    StepItem& item = *c.item;
    const bool forced = !item.sequence->request.forced_accepts.empty();
    item.num_verified = forced ? static_cast<int32_t>(item.drafts.ids.size()) : lengths[c.row];
    item.rows.num_rows = 1 + item.num_verified;
    std::copy_n(item.drafts.ids.begin(), item.num_verified,
                item.sequence->device.tokens.get() + item.rows.start + 1);
  }
}

void Drafter::Propose(const DraftRows& rows, std::span<Candidate> candidates,
                      DecisionContext* context) {
  std::vector<int32_t> previous;
  for (const Candidate& c : candidates) {
    previous.push_back(c.item->rows.tokens[c.item->rows.start]);
  }
  const auto vocab = static_cast<size_t>(config_.vocab_size);
  DraftProposal proposal;
  for (int32_t k = 0; k < rows.block_size; ++k) {
    for (Candidate& c : candidates) c.open = c.open && k < c.max_drafts;
    if (std::none_of(candidates.begin(), candidates.end(), [](const auto& c) { return c.open; })) {
      return;
    }
    if (!draft_model_.Propose(rows, k, previous, &proposal).ok()) return;
    for (Candidate& c : candidates) {
      if (!c.open) continue;
      c.open =
          Draw(proposal, k, &c, std::span(proposal.logits).subspan(c.row * vocab, vocab), context);
      if (!c.item->drafts.ids.empty()) previous[c.row] = c.item->drafts.ids.back();
    }
  }
}

bool Drafter::Draw(const DraftProposal& proposal, int32_t k, Candidate* c, std::span<float> logits,
                   DecisionContext* context) const {
  StepItem& item = *c->item;
  DraftBlock& drafts = item.drafts;
  // Known before the draft is drawn, so that cutting by it leaks nothing about its token.
  const double confidence = Calibrated(proposal.confidence[c->row], k);
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
  drafts.confidence.push_back(confidence);
  // Nothing follows a token that ends the answer.
  const auto num_drafts = static_cast<int32_t>(drafts.ids.size());
  int32_t stop_token_id = -1;
  return EndAfterToken(item.sequence->request, context->rule,
                       item.sequence->device.num_decided + num_drafts, drafts.ids.back(),
                       &stop_token_id) == FinishReason::kNone;
}

Status Drafter::Keep(std::span<const StepItem> items, std::span<const float> main_hidden) {
  const auto width = config_.dspark.target_layer_ids.size() * static_cast<size_t>(config_.dim);
  std::vector<DraftContext> contexts;
  const float* hidden = main_hidden.data();
  for (const StepItem& item : items) {
    if (!item.ran) continue;
    const SequenceStep& r = item.rows;
    const int32_t start = std::max(r.start, r.decoder_from);
    const int32_t num_rows = std::max(0, item.end() - start);
    const int32_t num_committed = item.is_decode ? item.num_committed : num_rows;
    if (num_committed > 0 && item.status.ok()) {
      contexts.push_back({hidden, start, num_committed, r.slot});
    }
    hidden += static_cast<size_t>(num_rows) * width;
  }
  if (contexts.empty()) return OkStatus();
  return draft_model_.InjectContext(contexts);
}

}  // namespace deepinfer
