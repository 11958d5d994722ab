#include "engine/token_constraint.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/process_stats.h"
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

// Adds the CPU time of its life to a sum. Time without the CPU does not count: it says nothing
// about the grammar.
class CpuMeter {
 public:
  explicit CpuMeter(int64_t* sum_ns) : sum_ns_(sum_ns), begin_ns_(ThreadCpuNs()) {}
  ~CpuMeter() { *sum_ns_ += ThreadCpuNs() - begin_ns_; }
  CpuMeter(const CpuMeter&) = delete;
  CpuMeter& operator=(const CpuMeter&) = delete;

 private:
  int64_t* const sum_ns_;
  const int64_t begin_ns_;
};

}  // namespace

TokenConstraint::TokenConstraint(std::shared_ptr<const CompiledGrammar> grammar,
                                 const Tokenizer& tokenizer, const OutputGrammar& source,
                                 const SamplingParams& sampling, int32_t end_id,
                                 MatchAllowance allowance)
    : matcher_(grammar, tokenizer, StopIds(sampling, end_id, grammar->vocab_size()),
               source.trigger),
      num_words_(GrammarMaskWords(grammar->vocab_size())),
      allowance_(allowance) {}

void TokenConstraint::KeepKnown(std::span<const int32_t> pending) {
  const auto differs =
      std::mismatch(drafts_.begin(), drafts_.end(), pending.begin(), pending.end());
  if (differs.second == pending.end()) return;
  const auto num_shared = static_cast<size_t>(differs.first - drafts_.begin());
  num_known_ = std::min(num_known_, num_shared + 1);
  drafts_.assign(pending.begin(), pending.end());
}

Status TokenConstraint::FillNext() {
  if (masks_.size() == num_known_) masks_.emplace_back().words.resize(num_words_);
  Mask& mask = masks_[num_known_];
  mask.restricts = false;
  if (!matcher_.IsTerminated()) {
    DI_ASSIGN_OR_RETURN(mask.restricts, matcher_.FillMask(mask.words));
  }
  ++num_known_;
  return OkStatus();
}

Status TokenConstraint::Fill(std::span<const int32_t> pending) {
  KeepKnown(pending);
  if (pending.size() < num_known_) return OkStatus();
  DI_RETURN_IF_ERROR(CheckAllowance());
  const CpuMeter meter(&used_ns_);
  int64_t num_taken = 0;
  Status status;
  for (size_t k = 0; status.ok(); ++k) {
    if (k >= num_known_) status = FillNext();
    if (!status.ok() || k == pending.size()) break;
    status = matcher_.Accept(pending[k]);
    num_taken += status.ok();
  }
  const Status undone = matcher_.Rollback(num_taken);
  DI_RETURN_IF_ERROR(status);
  return undone;
}

Result<std::span<const uint32_t>> TokenConstraint::MaskAfter(std::span<const int32_t> pending) {
  DI_RETURN_IF_ERROR(Fill(pending));
  const Mask& mask = masks_[pending.size()];
  if (!mask.restricts) return std::span<const uint32_t>();
  return std::span<const uint32_t>(mask.words);
}

Status TokenConstraint::CheckAllowance() const {
  const int64_t num_tokens = matcher_.num_accepted();
  if (used_ns_ / 1000 <= allowance_.base_us + allowance_.token_us * num_tokens) return OkStatus();
  return InvalidRequest(
      "The grammar takes too long to follow: " + std::to_string(used_ns_ / 1'000'000) +
      " ms of CPU time for " + std::to_string(num_tokens) +
      " tokens; make it less ambiguous, or shorten its counted repetitions");
}

Result<std::optional<int32_t>> TokenConstraint::ForcedToken() {
  if (num_known_ == 0) {
    const CpuMeter meter(&used_ns_);
    DI_ASSIGN_OR_RETURN(const bool may_force, matcher_.MayForceToken());
    if (!may_force) return std::optional<int32_t>();
  }
  DI_ASSIGN_OR_RETURN(const std::span<const uint32_t> mask, MaskAfter({}));
  return OnlyTokenOf(mask);
}

Status TokenConstraint::Commit(int32_t id) {
  const CpuMeter meter(&used_ns_);
  DI_RETURN_IF_ERROR(matcher_.Accept(id));
  if (num_known_ > 1 && drafts_.front() == id) {
    // A draft that was accepted: what is known behind it still holds.
    std::rotate(masks_.begin(), masks_.begin() + 1, masks_.end());
    --num_known_;
    drafts_.erase(drafts_.begin());
  } else {
    num_known_ = 0;
    drafts_.clear();
  }
  return OkStatus();
}

}  // namespace deepinfer
