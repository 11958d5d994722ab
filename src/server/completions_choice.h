// One choice of a text completion: takes engine events, keeps text and log-probabilities, writes
// the chunks.
// Thread rule: one object, one thread. Owner: CompletionsResponse.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request.h"
#include "server/choice_tokens.h"
#include "server/response_common.h"

namespace deepinfer {

class JsonWriter;

// The four parallel lists of the completions format (api.md §8), as JSON elements joined by commas.
class CompletionLogprobs {
 public:
  explicit CompletionLogprobs(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // `logprobs` null: the first token of an echoed prompt, which has no predecessor.
  void Add(int32_t id, const TokenLogprobs* logprobs, int64_t* num_nan);

  // {"tokens","token_logprobs","top_logprobs","text_offset"} of all tokens, or of those added
  // since the last call.
  std::string All() const { return Json(0); }
  std::string TakeNew();
  bool has_new() const { return num_taken_ < entries_.size(); }

 private:
  struct Entry {
    std::string token;    // JSON string
    std::string logprob;  // number or null
    std::string top;      // object or null
    int64_t text_offset;  // code points of the text before the token
  };

  std::string Json(size_t begin) const;
  std::string TopJson(int32_t id, const TokenLogprobs& logprobs, int64_t* num_nan) const;

  const Tokenizer& tokenizer_;
  std::vector<Entry> entries_;
  std::string partial_;  // bytes of an unfinished code point
  int64_t num_code_points_ = 0;
  size_t num_taken_ = 0;
};

struct CompletionsChoiceSettings {
  int32_t index = 0;  // in chunks
  int32_t eos_token_id = 1;
  bool stream = false;
  bool logprobs = false;
  bool return_token_ids = false;
  bool echo = false;
  std::span<const int32_t> prompt;  // borrowed: what echo shows, then all of it
  size_t num_hidden_prompt_tokens = 0;
  ParserSettings parser;
};

// What all chunks and bodies of one completion share.
struct CompletionsFormat {
  std::string id;
  std::string model;
  std::string system_fingerprint;
  int64_t created_s = 0;
};

class CompletionsChoice {
 public:
  // `tokenizer` and `format` are borrowed and outlive this object.
  CompletionsChoice(const Tokenizer& tokenizer, const CompletionsFormat& format,
                    CompletionsChoiceSettings settings);

  // Takes an event into the text. Ignored once the choice ended.
  ChoiceProgress Take(const TokenEvent& event);

  // Writes the chunks of everything taken since the last call. Returns whether this choice has
  // written any so far. Only when streaming.
  bool WriteChunks(const ChunkUsage& usage, std::vector<std::string>* chunks);

  // One element of `choices`. Precondition: the choice succeeded.
  void WriteBody(int32_t index, JsonWriter* json) const;

  // Of its tokens, as answers print them; 0 without any.
  double MeanLogprob() const;

  bool succeeded() const { return tokens_.succeeded(); }
  const ChoiceTokens& tokens() const { return tokens_; }
  int64_t num_nan_logprobs() const { return num_nan_logprobs_; }

 private:
  void Echo(const TokenEvent& event);
  void Absorb(const std::vector<OutputEvent>& events);
  std::string Chunk(std::string_view text, bool finishes, const ChunkUsage& usage);

  const Tokenizer& tokenizer_;
  const CompletionsFormat& format_;
  CompletionsChoiceSettings settings_;
  ChoiceTokens tokens_;
  CompletionLogprobs logprobs_;
  std::string text_;
  size_t num_written_bytes_ = 0;
  size_t num_written_ids_ = 0;
  int64_t num_nan_logprobs_ = 0;
  double sum_of_logprobs_ = 0;
  int64_t num_summed_ = 0;
  bool echoed_ = false;
  bool wrote_finish_ = false;
};

}  // namespace deepinfer
