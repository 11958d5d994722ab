// One face for the answers of the generating routes, so that server/generation.cc runs them alike.
// Thread rule: one object, one thread at a time. Owner: its generation.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/chat_response.h"
#include "server/completions_response.h"
#include "text/output_event.h"

namespace deepinfer {

// The methods are those of ChatResponse.
class AnswerBuilder {
 public:
  virtual ~AnswerBuilder() = default;

  virtual ChoiceProgress OnEvent(int32_t choice, const TokenEvent& event,
                                 std::vector<std::string>* chunks) = 0;
  virtual bool done() const = 0;
  virtual std::string UsageChunk() const = 0;
  virtual std::string Body(const ResponseMetrics* metrics) const = 0;
  virtual UsageCounts usage() const = 0;
  virtual MalformedCounts malformed() const = 0;
  virtual int64_t num_nan_logprobs() const = 0;
  virtual std::string_view finish_reason(int32_t choice) const = 0;
};

// `tokenizer` is borrowed and outlives the builder.
std::unique_ptr<AnswerBuilder> MakeChatAnswer(const Tokenizer& tokenizer,
                                              ChatResponseOptions options);
std::unique_ptr<AnswerBuilder> MakeCompletionsAnswer(const Tokenizer& tokenizer,
                                                     CompletionsResponseOptions options);

}  // namespace deepinfer
