#include "engine/token_decision.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/verify.h"

namespace deepinfer {

namespace {

// The rows of one item as targets of verification: target k follows drafts 1..k-1.
class Targets {
 public:
  Targets(const StepItem& item, std::span<float> logits, std::span<const float> maxima,
          DecisionContext* context)
      : item_(item),
        sampler_(*item.sequence->device.sampler),
        logits_(logits),
        maxima_(maxima),
        width_(logits.size() / (static_cast<size_t>(item.num_verified) + 1)),
        first_position_(item.end() - item.num_verified),
        context_(context) {}

  std::span<const int32_t> drafts() const {
    return std::span(item_.drafts.ids).first(static_cast<size_t>(item_.num_verified));
  }
  int64_t first_position() const { return first_position_; }

  Result<SampledToken> Sample(int32_t k) const {
    DI_ASSIGN_OR_RETURN(const SampleRow row, Row(k));
    return sampler_.Sample(row, &context_->scratch);
  }
  Result<Survivors> Process(int32_t k) const {
    DI_ASSIGN_OR_RETURN(const SampleRow row, Row(k));
    Survivors p;
    DI_RETURN_IF_ERROR(sampler_.Process(row, &context_->scratch, &p));
    return p;
  }
  // The known token of a position with what the request wants to know about it.
  Result<SampledToken> Report(int32_t k, int32_t id) const {
    DI_ASSIGN_OR_RETURN(SampleRow row, Row(k));
    row.forced_id = id;
    return sampler_.Sample(row, &context_->scratch);
  }

 private:
  Result<SampleRow> Row(int32_t k) const {
    const auto i = static_cast<size_t>(k - 1);
    DI_ASSIGN_OR_RETURN(SampleRow row,
                        PendingRow(*item_.sequence, logits_.subspan(i * width_, width_),
                                   first_position_ + k - 1, drafts().first(i), context_));
    const size_t num_maxima = maxima_.size() / (logits_.size() / width_);
    row.maxima = maxima_.subspan(i * num_maxima, num_maxima);
    return row;
  }

  const StepItem& item_;
  const Sampler& sampler_;
  std::span<float> logits_;
  std::span<const float> maxima_;
  size_t width_;
  int64_t first_position_;
  DecisionContext* context_;
};

using Tokens = std::vector<SampledToken>;

Result<Tokens> ByEquality(const Targets& targets) {
  Tokens tokens;
  const Result<Verification> verified =
      VerifyByEquality(targets.drafts(), [&](int32_t k) -> Result<int32_t> {
        DI_ASSIGN_OR_RETURN(SampledToken token, targets.Sample(k));
        tokens.push_back(std::move(token));
        return tokens.back().id;
      });
  // Every target asked for before the failing one was equal to its draft.
  if (!verified.ok() && tokens.empty()) return verified.status();
  return tokens;
}

// The accepted drafts and the token behind them, -1 for none.
Result<Tokens> Reported(const Targets& targets, int32_t num_accepted, int32_t last_id) {
  Tokens tokens;
  for (int32_t k = 1; k <= num_accepted + (last_id >= 0); ++k) {
    const int32_t id = k <= num_accepted ? targets.drafts()[static_cast<size_t>(k - 1)] : last_id;
    DI_ASSIGN_OR_RETURN(SampledToken token, targets.Report(k, id));
    tokens.push_back(std::move(token));
  }
  return tokens;
}

Result<Tokens> ByRejection(const Targets& targets, const StepItem& item) {
  int32_t num_asked = 0;
  const Result<Verification> verified = VerifyByRejection(
      targets.drafts(), item.drafts.q,
      [&](int32_t k) {
        num_asked = k;
        return targets.Process(k);
      },
      item.sequence->request.sampling.seed, static_cast<uint64_t>(targets.first_position()));
  if (verified.ok()) return Reported(targets, verified->num_accepted, verified->token);
  // Every draft before the failing target was accepted.
  if (num_asked < 2) return verified.status();
  return Reported(targets, num_asked - 1, -1);
}

Result<Tokens> ByForce(const Targets& targets, int32_t num_accepted) {
  DI_ASSIGN_OR_RETURN(const SampledToken last, targets.Sample(num_accepted + 1));
  return Reported(targets, num_accepted, last.id);
}

// Length that a test prescribes for this verification, -1: none does.
int32_t ForcedLength(Sequence& s, int32_t num_verified) {
  const auto& lengths = s.request.forced_accepts;
  if (lengths.empty() || num_verified == 0) return -1;
  const auto turn = static_cast<size_t>(s.device.num_verifications++) % lengths.size();
  return std::min(lengths[turn], num_verified);
}

// Whether the token ends what the grammar describes, and with it the output.
Result<bool> CommitToGrammar(Sequence& s, int32_t id) {
  std::optional<TokenConstraint>& constraint = s.device.constraint;
  if (!constraint) return false;
  const Status status = constraint->Commit(id);
  if (!status.ok()) {
    const auto index = static_cast<size_t>(s.device.num_decided);
    if (index >= s.request.forced_ids.size()) return status;
    // Forced output may leave the grammar; what follows it is free.
    constraint.reset();
    return false;
  }
  if (!constraint->ended()) return false;
  if (constraint->in_grammar() || !s.request.sampling.ignore_eos) return true;
  constraint.reset();
  return false;
}

// Makes a token part of the output.
Status Take(const EndRule& rule, SampledToken token, StepItem* item) {
  Sequence& s = *item->sequence;
  DeviceRows& device = s.device;
  DI_ASSIGN_OR_RETURN(item->ended_by_grammar, CommitToGrammar(s, token.id));
  device.sampler->Commit(token.id);
  device.tokens[static_cast<size_t>(s.prompt_len + device.num_decided)] = token.id;
  ++device.num_decided;
  int32_t stop_token_id = -1;
  const FinishReason end =
      EndAfterToken(s.request, rule, device.num_decided, token.id, &stop_token_id);
  device.ended = item->ended_by_grammar || end != FinishReason::kNone;
  item->tokens.push_back(std::move(token));
  return OkStatus();
}

// Appends tokens as long as the grammar leaves no choice.
Status AppendForced(StepItem* item, DecisionContext* context) {
  DeviceRows& device = item->sequence->device;
  for (int32_t i = 0; i < device.max_forced && device.constraint && !device.ended; ++i) {
    DI_ASSIGN_OR_RETURN(const std::optional<int32_t> id, device.constraint->ForcedToken());
    // Where the parameters ban the only legal token, sampling reports it.
    if (!id || device.sampler->BansOnlyChoice(*id)) break;
    DI_RETURN_IF_ERROR(Take(context->rule, {.id = *id, .logprobs = {}}, item));
    ++item->num_forced;
  }
  return OkStatus();
}

}  // namespace

Result<SampleRow> PendingRow(Sequence& sequence, std::span<float> logits, int64_t position,
                             std::span<const int32_t> pending, DecisionContext* context) {
  SampleRow row;
  row.logits = logits;
  row.position = position;
  row.pending = pending;
  const auto& forced = sequence.request.forced_ids;
  const size_t index = static_cast<size_t>(sequence.device.num_decided) + pending.size();
  if (index < forced.size()) {
    row.forced_id = forced[index];
  } else if (sequence.device.constraint) {
    const int64_t begin_us = context->clock->NowUs();
    DI_ASSIGN_OR_RETURN(row.mask, sequence.device.constraint->MaskAfter(pending));
    context->grammar_us += context->clock->NowUs() - begin_us;
  }
  return row;
}

Status DecideTokens(StepItem* item, std::span<float> logits, std::span<const float> maxima,
                    DecisionContext* context) {
  Sequence& s = *item->sequence;
  const Targets targets(*item, logits, maxima, context);
  const int32_t forced = ForcedLength(s, item->num_verified);
  // Forced ids are targets like those of temperature 0.
  const bool by_equality = item->num_verified == 0 || s.device.sampler->verifies_by_equality() ||
                           !s.request.forced_ids.empty();
  Result<Tokens> tokens = forced >= 0   ? ByForce(targets, forced)
                          : by_equality ? ByEquality(targets)
                                        : ByRejection(targets, *item);
  if (!tokens.ok()) return tokens.status();
  for (SampledToken& token : *tokens) {
    const size_t i = item->tokens.size();
    const bool is_draft = i < targets.drafts().size() && targets.drafts()[i] == token.id;
    const Status taken = Take(context->rule, std::move(token), item);
    if (!taken.ok()) return item->tokens.empty() ? taken : OkStatus();
    item->num_accepted += is_draft && item->num_accepted == static_cast<int32_t>(i);
    if (s.device.ended) return OkStatus();
  }
  const int64_t begin_us = context->clock->NowUs();
  (void)AppendForced(item, context);
  context->grammar_us += context->clock->NowUs() - begin_us;
  return OkStatus();
}

}  // namespace deepinfer
