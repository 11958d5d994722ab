// Builds the answer of POST /v1/completions from engine events (api.md §4-§6, §8).
// Thread rule: one object, one thread. Owner: the request's connection.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request.h"
#include "server/response_common.h"
#include "server/usage.h"

namespace deepinfer {

class Tokenizer;

struct CompletionsResponseOptions {
  std::string id;  // "cmpl-..."
  std::string model;
  std::string system_fingerprint;
  int64_t created_s = 0;
  std::vector<std::vector<int32_t>> prompts;  // ids as run; read with echo and return_token_ids
  int32_t choices_per_prompt = 1;             // choice index = prompt index * this + j
  // The likeliest choices of a prompt, which its answer is made of, not while streaming; 0: all.
  int32_t answers_per_prompt = 0;
  int32_t num_hidden_prompt_tokens = 0;  // leading prompt ids the client did not send
  bool echo = false;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  StreamUsageStyle usage_style = StreamUsageStyle::kOpenAi;
  bool usage_extension = true;
  bool logprobs = false;  // with echo also of the prompt
  bool return_token_ids = false;
  int32_t eos_token_id = 1;
  std::vector<std::string> stop_strings;
  bool include_stop_string = false;
  int64_t num_tokens_without_stop = 0;  // as in ParserSettings
};

class CompletionsResponse {
 public:
  // `tokenizer` is borrowed and outlives this object.
  CompletionsResponse(const Tokenizer& tokenizer, CompletionsResponseOptions options);
  ~CompletionsResponse();

  // As ChatResponse::OnEvent.
  ChoiceProgress OnEvent(int32_t choice, const TokenEvent& event, std::vector<std::string>* chunks);
  bool done() const;
  std::string UsageChunk() const;
  // The text_completion object. Precondition: done(). `metrics` may be null.
  std::string Body(const ResponseMetrics* metrics) const;

  UsageCounts usage() const;
  int64_t num_nan_logprobs() const;
  std::string_view finish_reason(int32_t choice) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer
