// Which tokens an output may continue with: compiled grammars and the matchers that follow one
// output through them (structured_outputs.md §3, §5).
// Thread rule: a CompiledGrammar is immutable and shared; a matcher belongs to one thread at a
// time. Owner of a matcher: the sequence it follows.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace deepinfer {

class Tokenizer;

// A grammar prepared for one vocabulary. Made by GrammarPool.
class CompiledGrammar {
 public:
  struct Impl;

  explicit CompiledGrammar(std::unique_ptr<const Impl> impl);
  ~CompiledGrammar();
  CompiledGrammar(const CompiledGrammar&) = delete;
  CompiledGrammar& operator=(const CompiledGrammar&) = delete;

  int64_t size_bytes() const;
  int32_t vocab_size() const;

  // The ids below vocab_size that stand for a token, as a mask.
  std::span<const uint32_t> existing_ids() const;

  // Parts of the source that the grammar does not enforce ("Keyword uniqueItems is not
  // supported"). Without any, every finished output follows the source.
  const std::vector<std::string>& unenforced() const;

  const Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<const Impl> impl_;
};

// When the grammar begins (structured_outputs.md §3, §5). Before that the output is free.
struct GrammarTrigger {
  // The grammar applies behind the first occurrence of these tokens; empty: from the start.
  std::vector<int32_t> token_ids;
  // The first trigger token is legal only behind text that ends so (a tag's "<").
  std::string preceding_text;
  // Once written, the rest of the trigger must follow: behind its place in token_ids if it is one
  // of them, else all of them.
  std::optional<int32_t> bound_token;
  // Illegal before the trigger.
  std::vector<int32_t> banned_ids;
  // Whether the output may end without the trigger.
  bool optional = false;
};

// Words of a token mask: bit id % 32 of word id / 32 is set if the token is legal.
constexpr size_t GrammarMaskWords(int32_t vocab_size) {
  return (static_cast<size_t>(vocab_size) + 31) / 32;
}

// The only id of a mask, if it holds exactly one.
std::optional<int32_t> OnlyTokenOf(std::span<const uint32_t> mask);

class GrammarMatcher {
 public:
  // `stop_ids` end the output; legal where the grammar is complete. At least one.
  // The tokenizer is the one the grammar was compiled for and is borrowed.
  GrammarMatcher(std::shared_ptr<const CompiledGrammar> grammar, const Tokenizer& tokenizer,
                 std::vector<int32_t> stop_ids, GrammarTrigger trigger = {});
  ~GrammarMatcher();
  GrammarMatcher(GrammarMatcher&&) noexcept;
  GrammarMatcher& operator=(GrammarMatcher&&) noexcept;

  // A matcher in the same state that goes its own way (fork). Costs a copy of the state.
  GrammarMatcher Clone() const;

  // Writes GrammarMaskWords(vocab_size) words; bits of ids that do not exist are 0. True if some
  // token that exists is illegal. Precondition: not terminated.
  // Errors: internal if the library fails; the request must then end.
  Result<bool> FillMask(std::span<uint32_t> mask);

  // Takes the next token of the output. Error: invalid_request for an illegal token, which leaves
  // the state as it was.
  Status Accept(int32_t token_id);

  // Takes tokens that were emitted before, as after a migration. On an error the state is that
  // before the first illegal token.
  Status AcceptAll(std::span<const int32_t> token_ids);

  // Forgets the last tokens; any number up to num_accepted().
  Status Rollback(int64_t num_tokens);

  // False where more than one token is legal, as far as that shows without a mask: at a fraction
  // of its cost. internal if the library fails.
  Result<bool> MayForceToken();

  // The only legal token, if there is exactly one. `mask` is work memory as for FillMask.
  Result<std::optional<int32_t>> FindForcedToken(std::span<uint32_t> mask);

  // A stop token was taken.
  bool IsTerminated() const;
  // The output could end here.
  bool IsComplete() const;
  // The trigger was seen, or there is none.
  bool InGrammar() const;
  int64_t num_accepted() const;

 private:
  struct Impl;
  explicit GrammarMatcher(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer
