// One face for the answers of the generating routes, so that server/generation.cc runs them alike.
// Thread rule: one object, one thread at a time. Owner: its generation.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"
#include "server/chat_response.h"
#include "server/completions_response.h"
#include "text/output_event.h"

namespace deepinfer {

// Methods without a comment are those of ChatResponse.
class AnswerBuilder {
 public:
  virtual ~AnswerBuilder() = default;

  // Appends the events of a stream that are due, complete as they go to the client; each is one
  // write.
  virtual ChoiceProgress OnEvent(int32_t choice, const TokenEvent& event,
                                 std::vector<std::string>* events) = 0;
  // Appends what a stream says of a request that waits for its turn; "" where the dialect has no
  // word for it. At most once, before the first OnEvent.
  virtual void Queue(std::vector<std::string>* /*events*/) {}
  virtual bool done() const = 0;
  // Appends what follows the end of the last choice. Precondition: done(), streaming.
  virtual void Close(std::vector<std::string>* events) const = 0;
  // Appends what a stream ends with that has begun and cannot go on.
  virtual void Abort(const ApiError& error, std::string_view request_id,
                     std::vector<std::string>* events) = 0;
  // What fills silence before the first event.
  virtual std::string_view keep_alive() const = 0;
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
