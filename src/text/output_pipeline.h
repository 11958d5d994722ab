// From committed token ids to parser events, one object per choice: detokenise (whole code points
// only), find markers by id, parse, match stop strings (encoding.md §9, §12-§14).
// The result is a function of the ids alone, whatever their grouping into steps.
// Thread rule: one object, one thread. Owner: the choice it serves.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/detokenizer.h"
#include "text/output_event.h"
#include "text/output_parser.h"

namespace deepinfer {

struct TokenCounts {
  // Tokens taken, the one that completed a stop string included, those behind it not. The end
  // token that ends the choice never passes through here; whoever removed it adds it.
  int64_t taken = 0;
  // Tokens committed in reasoning, the closing marker excluded (api.md §6).
  int64_t reasoning = 0;
};

class OutputPipeline {
 public:
  // `tokenizer` is borrowed and outlives this object.
  OutputPipeline(const Tokenizer& tokenizer, ParserSettings settings);

  // Reports in OutputEvent::tokens which tokens each text came from. Call before the first Push.
  void TrackTokens() { parser_.TrackTokens(); }

  // Takes one step's ids, without the end token, and appends events to `out` (neighbours of one
  // kind joined). Returns the number of ids taken: fewer than given when a stop string completed;
  // later calls then take nothing. Ids that do not exist contribute no text.
  size_t Push(std::span<const int32_t> ids, std::vector<OutputEvent>* out);

  // Takes one token that has no text: an end token the request told to ignore.
  void SkipToken();

  // Text in place of ids (recorded output, tests): markers are recognised by string. Counts no
  // tokens.
  void PushText(std::string_view text, std::vector<OutputEvent>* out);

  // End of the choice: drops an unfinished code point, releases held text. Idempotent.
  void Finish(std::vector<OutputEvent>* out);

  bool stopped() const { return parser_.stopped(); }
  const std::string& stop_string() const { return stop_string_; }
  OutputStage stage() const { return parser_.stage(); }
  int32_t num_calls() const { return parser_.num_calls(); }
  const TokenCounts& counts() const { return counts_; }
  const MalformedCounts& malformed() const { return parser_.malformed(); }

 private:
  void PushOne(int32_t id, std::vector<OutputEvent>* out);
  void NoteStop(const std::vector<OutputEvent>& events);

  Detokenizer detokenizer_;
  OutputParser parser_;
  TokenCounts counts_;
  std::string stop_string_;
  int64_t first_pending_token_ = 0;  // oldest token whose bytes the detokenizer still holds
  bool finished_ = false;
};

}  // namespace deepinfer
