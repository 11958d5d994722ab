#include <algorithm>
#include <bit>
#include <utility>

#include "text/grammar.h"
#include "text/grammar_library.h"
#include "text/tokenizer.h"

namespace deepinfer {

namespace {

void ClearBit(int32_t id, std::span<uint32_t> mask) {
  const size_t word = static_cast<size_t>(id) / 32;
  if (id >= 0 && word < mask.size()) mask[word] &= ~(uint32_t{1} << (id % 32));
}

void SetOnly(int32_t id, std::span<uint32_t> mask) {
  std::fill(mask.begin(), mask.end(), 0);
  mask[static_cast<size_t>(id) / 32] = uint32_t{1} << (id % 32);
}

}  // namespace

std::optional<int32_t> OnlyTokenOf(std::span<const uint32_t> mask) {
  std::optional<int32_t> found;
  for (size_t word = 0; word < mask.size(); ++word) {
    if (mask[word] == 0) continue;
    if (found || !std::has_single_bit(mask[word])) return std::nullopt;
    found = static_cast<int32_t>(word * 32) + std::countr_zero(mask[word]);
  }
  return found;
}

// Before the trigger `tokens` is the whole state: what is legal follows from its end. So rollback
// there only shortens it; behind the trigger the cursor takes its part first.
struct GrammarMatcher::Impl {
  std::shared_ptr<const CompiledGrammar> grammar;
  const Tokenizer* tokenizer = nullptr;
  std::vector<int32_t> stop_ids;
  GrammarTrigger trigger;

  std::vector<int32_t> tokens;  // accepted so far
  // Number of tokens in front of the grammar; tokens.size() or more while it is awaited.
  int64_t grammar_begin = 0;
  GrammarCursor cursor;
  bool stopped_before_trigger = false;

  Impl Clone() const {
    return {grammar, tokenizer,     stop_ids,       trigger,
            tokens,  grammar_begin, cursor.Clone(), stopped_before_trigger};
  }

  bool InGrammar() const { return grammar_begin >= 0; }

  // Tokens of the trigger that were written: the longest beginning of it at the end of `tokens`.
  size_t TriggerProgress() const;
  // What must come next before the trigger, if the bound token or a begun trigger binds.
  std::optional<int32_t> BoundContinuation() const;
  bool MayBeginTrigger() const;
  bool IsLegalBeforeTrigger(int32_t id) const;
  void FillFreeMask(std::span<uint32_t> mask) const;
};

namespace {
constexpr int64_t kAwaitingTrigger = -1;
}

size_t GrammarMatcher::Impl::TriggerProgress() const {
  const auto& ids = trigger.token_ids;
  for (size_t length = std::min(ids.size(), tokens.size()); length > 0; --length) {
    if (std::equal(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(length),
                   tokens.end() - static_cast<ptrdiff_t>(length))) {
      return length;
    }
  }
  return 0;
}

std::optional<int32_t> GrammarMatcher::Impl::BoundContinuation() const {
  const auto& ids = trigger.token_ids;
  if (!trigger.bound_token) return std::nullopt;
  const auto bound = std::find(ids.begin(), ids.end(), *trigger.bound_token);
  const size_t progress = TriggerProgress();
  if (bound != ids.end()) {
    const auto place = static_cast<size_t>(bound - ids.begin());
    if (progress > place) return ids[progress];
    return std::nullopt;
  }
  // The bound token is none of the trigger's: the whole of it follows.
  if (tokens.size() <= progress) return std::nullopt;
  if (tokens[tokens.size() - progress - 1] != *trigger.bound_token) return std::nullopt;
  return ids[progress];
}

// Whether the text so far ends with trigger.preceding_text.
bool GrammarMatcher::Impl::MayBeginTrigger() const {
  std::string_view wanted = trigger.preceding_text;
  for (auto it = tokens.rbegin(); it != tokens.rend() && !wanted.empty(); ++it) {
    const std::string_view bytes = tokenizer->TokenBytes(*it);
    const size_t length = std::min(wanted.size(), bytes.size());
    if (wanted.substr(wanted.size() - length) != bytes.substr(bytes.size() - length)) return false;
    wanted.remove_suffix(length);
  }
  return wanted.empty();
}

void GrammarMatcher::Impl::FillFreeMask(std::span<uint32_t> mask) const {
  if (const auto next = BoundContinuation()) {
    SetOnly(*next, mask);
    return;
  }
  const auto existing = grammar->existing_ids();
  std::copy(existing.begin(), existing.end(), mask.begin());
  for (const int32_t id : trigger.banned_ids) ClearBit(id, mask);
  if (!trigger.optional) {
    for (const int32_t id : stop_ids) ClearBit(id, mask);
  }
  if (!MayBeginTrigger()) ClearBit(trigger.token_ids.front(), mask);
}

bool GrammarMatcher::Impl::IsLegalBeforeTrigger(int32_t id) const {
  if (const auto next = BoundContinuation()) return id == *next;
  const auto holds = [id](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  };
  if (!tokenizer->IsValidId(id) || holds(trigger.banned_ids)) return false;
  if (!trigger.optional && holds(stop_ids)) return false;
  return id != trigger.token_ids.front() || MayBeginTrigger();
}

GrammarMatcher::GrammarMatcher(std::shared_ptr<const CompiledGrammar> grammar,
                               const Tokenizer& tokenizer, std::vector<int32_t> stop_ids,
                               GrammarTrigger trigger) {
  GrammarCursor cursor(grammar, stop_ids);
  const int64_t begin = trigger.token_ids.empty() ? 0 : kAwaitingTrigger;
  impl_ = std::make_unique<Impl>(Impl{std::move(grammar),
                                      &tokenizer,
                                      std::move(stop_ids),
                                      std::move(trigger),
                                      {},
                                      begin,
                                      std::move(cursor),
                                      false});
}

GrammarMatcher::GrammarMatcher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GrammarMatcher::~GrammarMatcher() = default;
GrammarMatcher::GrammarMatcher(GrammarMatcher&&) noexcept = default;
GrammarMatcher& GrammarMatcher::operator=(GrammarMatcher&&) noexcept = default;

GrammarMatcher GrammarMatcher::Clone() const {
  return GrammarMatcher(std::make_unique<Impl>(impl_->Clone()));
}

Result<bool> GrammarMatcher::FillMask(std::span<uint32_t> mask) {
  if (!impl_->InGrammar()) {
    impl_->FillFreeMask(mask);
  } else {
    DI_RETURN_IF_ERROR(impl_->cursor.FillMask(mask));
  }
  const auto existing = impl_->grammar->existing_ids();
  return !std::equal(existing.begin(), existing.end(), mask.begin());
}

Status GrammarMatcher::Accept(int32_t token_id) {
  Impl& state = *impl_;
  if (state.InGrammar()) {
    DI_RETURN_IF_ERROR(state.cursor.Accept(token_id));
    state.tokens.push_back(token_id);
    return OkStatus();
  }
  if (state.stopped_before_trigger || !state.IsLegalBeforeTrigger(token_id)) {
    return InvalidRequest("token " + std::to_string(token_id) + " is not allowed here");
  }
  state.tokens.push_back(token_id);
  state.stopped_before_trigger =
      std::find(state.stop_ids.begin(), state.stop_ids.end(), token_id) != state.stop_ids.end();
  if (state.TriggerProgress() == state.trigger.token_ids.size()) {
    state.grammar_begin = static_cast<int64_t>(state.tokens.size());
  }
  return OkStatus();
}

Status GrammarMatcher::AcceptAll(std::span<const int32_t> token_ids) {
  for (const int32_t id : token_ids) DI_RETURN_IF_ERROR(Accept(id));
  return OkStatus();
}

Status GrammarMatcher::Rollback(int64_t num_tokens) {
  Impl& state = *impl_;
  const auto num_accepted = static_cast<int64_t>(state.tokens.size());
  if (num_tokens < 0 || num_tokens > num_accepted) {
    return InvalidRequest("cannot forget " + std::to_string(num_tokens) + " of " +
                          std::to_string(num_accepted) + " tokens");
  }
  if (state.InGrammar()) {
    const int64_t num_in_grammar = num_accepted - state.grammar_begin;
    DI_RETURN_IF_ERROR(state.cursor.Rollback(std::min(num_tokens, num_in_grammar)));
    if (num_tokens > num_in_grammar) state.grammar_begin = kAwaitingTrigger;
  }
  state.tokens.resize(static_cast<size_t>(num_accepted - num_tokens));
  if (num_tokens > 0) state.stopped_before_trigger = false;
  return OkStatus();
}

Result<bool> GrammarMatcher::MayForceToken() {
  if (!impl_->InGrammar()) return impl_->BoundContinuation().has_value();
  // Where the output may end it may be that it must.
  if (impl_->cursor.IsComplete()) return true;
  return impl_->cursor.ForcesByte();
}

Result<std::optional<int32_t>> GrammarMatcher::FindForcedToken(std::span<uint32_t> mask) {
  DI_ASSIGN_OR_RETURN(const bool restricts, FillMask(mask));
  if (!restricts) return std::optional<int32_t>();
  return OnlyTokenOf(mask);
}

bool GrammarMatcher::IsTerminated() const {
  return impl_->InGrammar() ? impl_->cursor.IsTerminated() : impl_->stopped_before_trigger;
}

bool GrammarMatcher::IsComplete() const {
  return impl_->InGrammar() ? impl_->cursor.IsComplete() : impl_->trigger.optional;
}

bool GrammarMatcher::InGrammar() const { return impl_->InGrammar(); }

int64_t GrammarMatcher::num_accepted() const { return static_cast<int64_t>(impl_->tokens.size()); }

}  // namespace deepinfer
