// Which tokens the grammar of one sequence allows next, where drafts may stand in front of that
// place (structured_outputs.md §6).
// Thread rule: one caller at a time; the thread that runs steps, once the sequence is admitted.
// Owner: Sequence.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/request.h"
#include "text/grammar.h"

namespace deepinfer {

class Tokenizer;

// CPU time that following a grammar may take of the threads that all requests of a batch share:
// so much, and a little more with every token. Ordinary grammars take microseconds a token; with
// ambiguous or long counted ones a token may take more than all before it.
struct MatchAllowance {
  int64_t base_us = 2'000'000;  // as much as a compilation
  int64_t token_us = 2'000;     // a small part of a step of a model that is worth serving
};

class TokenConstraint {
 public:
  // The grammar was compiled for the tokenizer, which is borrowed. The output ends with the end
  // token or one of the request's stop ids.
  TokenConstraint(std::shared_ptr<const CompiledGrammar> grammar, const Tokenizer& tokenizer,
                  const OutputGrammar& source, const SamplingParams& sampling, int32_t end_id,
                  MatchAllowance allowance = {});

  // The legal tokens behind the committed ones and `pending` (drafts), as a mask: bit id % 32 of
  // word id / 32; ids beyond it are illegal. Empty: every token is legal, or pending ends the
  // output. Valid until the next call. invalid_request if the grammar does not allow pending or
  // took more than its allowance; internal if the library fails.
  Result<std::span<const uint32_t>> MaskAfter(std::span<const int32_t> pending);

  // Computes what MaskAfter will be asked for: the masks behind the committed tokens and each
  // beginning of `drafts`. What fails shows in MaskAfter.
  void Prepare(std::span<const int32_t> drafts) { (void)Fill(drafts); }

  // The only legal next token, if there is exactly one. Where that cannot be, no mask is computed.
  Result<std::optional<int32_t>> ForcedToken();

  // Takes the next token of the output. invalid_request for an illegal one, which changes nothing.
  Status Commit(int32_t id);

  // A stop token was taken: the output is over.
  bool ended() const { return matcher_.IsTerminated(); }
  // The grammar has begun: the trigger was seen, or there is none.
  bool in_grammar() const { return matcher_.InGrammar(); }

 private:
  struct Mask {
    std::vector<uint32_t> words;
    bool restricts = false;  // some token that exists is not in it, and the output goes on
  };

  // Makes the masks behind each beginning of pending known.
  Status Fill(std::span<const int32_t> pending);
  Status CheckAllowance() const;
  // Drops what is known about other drafts than `pending`.
  void KeepKnown(std::span<const int32_t> pending);
  // The mask behind what the matcher has taken becomes the next known one.
  Status FillNext();

  GrammarMatcher matcher_;
  size_t num_words_;
  MatchAllowance allowance_;
  int64_t used_ns_ = 0;  // CPU time of the matcher so far
  // masks_[k], k < num_known_, is that behind the committed tokens and the first k of drafts_.
  std::vector<Mask> masks_;
  size_t num_known_ = 0;
  std::vector<int32_t> drafts_;
};

}  // namespace deepinfer
