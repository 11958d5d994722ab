#include "engine/token_constraint.h"

#include <utility>

#include "text/tokenizer.h"

namespace deepinfer {

namespace {

// Ids of the model that the vocabulary of the grammar lacks cannot end an output.
std::vector<int32_t> StopIds(const SamplingParams& sampling, int32_t end_id, int32_t vocab_size) {
  std::vector<int32_t> ids{end_id};
  for (const int32_t id : sampling.stop_token_ids) {
    if (id != end_id && id < vocab_size) ids.push_back(id);
  }
  return ids;
}

}  // namespace

TokenConstraint::TokenConstraint(std::shared_ptr<const CompiledGrammar> grammar,
                                 const Tokenizer& tokenizer, const OutputGrammar& source,
                                 const SamplingParams& sampling, int32_t end_id)
    : matcher_(grammar, tokenizer, StopIds(sampling, end_id, grammar->vocab_size()),
               source.trigger),
      mask_(GrammarMaskWords(grammar->vocab_size())) {}

Status TokenConstraint::FillMask() {
  mask_is_current_ = false;
  DI_ASSIGN_OR_RETURN(restricts_, matcher_.FillMask(mask_));
  return OkStatus();
}

Result<std::span<const uint32_t>> TokenConstraint::MaskAfter(std::span<const int32_t> pending) {
  int64_t num_taken = 0;
  Status status;
  for (const int32_t id : pending) {
    status = matcher_.Accept(id);
    if (!status.ok()) break;
    ++num_taken;
  }
  const bool over = matcher_.IsTerminated();
  if (status.ok() && !over && !(mask_is_current_ && pending.empty())) {
    status = FillMask();
    mask_is_current_ = status.ok() && pending.empty();
  }
  const Status undone = matcher_.Rollback(num_taken);
  DI_RETURN_IF_ERROR(status);
  DI_RETURN_IF_ERROR(undone);
  if (over || !restricts_) return std::span<const uint32_t>();
  return std::span<const uint32_t>(mask_);
}

int32_t TokenConstraint::CountAllowed(std::span<const int32_t> drafts) {
  int32_t num_allowed = 0;
  for (const int32_t id : drafts) {
    if (matcher_.IsTerminated() || !matcher_.Accept(id).ok()) break;
    ++num_allowed;
  }
  // A failing library shows again, with its reason, in the mask of the next token.
  return matcher_.Rollback(num_allowed).ok() ? num_allowed : 0;
}

Result<std::optional<int32_t>> TokenConstraint::ForcedToken() {
  DI_ASSIGN_OR_RETURN(const std::span<const uint32_t> mask, MaskAfter({}));
  return OnlyTokenOf(mask);
}

Status TokenConstraint::Commit(int32_t id) {
  DI_RETURN_IF_ERROR(matcher_.Accept(id));
  mask_is_current_ = false;
  return OkStatus();
}

}  // namespace deepinfer
