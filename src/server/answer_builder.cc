#include "server/answer_builder.h"

#include <utility>

#include "server/sse.h"

namespace deepinfer {
namespace {

template <typename Response, typename Options>
class BuilderOf final : public AnswerBuilder {
 public:
  BuilderOf(const Tokenizer& tokenizer, Options options)
      : response_(tokenizer, std::move(options)) {}

  ChoiceProgress OnEvent(int32_t choice, const TokenEvent& event,
                         std::vector<std::string>* events) override {
    std::vector<std::string> chunks;
    const ChoiceProgress progress = response_.OnEvent(choice, event, &chunks);
    for (const std::string& chunk : chunks) events->push_back(SseData(chunk));
    return progress;
  }
  bool done() const override { return response_.done(); }
  void Close(std::vector<std::string>* events) const override {
    const std::string usage = response_.UsageChunk();
    if (!usage.empty()) events->push_back(SseData(usage));
    events->emplace_back(kSseDone);
  }
  void Abort(const ApiError& error, std::string_view /*request_id*/,
             std::vector<std::string>* events) override {
    events->push_back(SseData(OpenAiErrorBody(error)));
    events->emplace_back(kSseDone);
  }
  std::string_view keep_alive() const override { return kSseKeepAlive; }
  std::string Body(const ResponseMetrics* metrics) const override {
    return response_.Body(metrics);
  }
  UsageCounts usage() const override { return response_.usage(); }
  MalformedCounts malformed() const override {
    if constexpr (requires { response_.malformed(); }) {
      return response_.malformed();
    } else {
      return {};  // raw completions have no markup to parse
    }
  }
  int64_t num_nan_logprobs() const override { return response_.num_nan_logprobs(); }
  std::string_view finish_reason(int32_t choice) const override {
    return response_.finish_reason(choice);
  }

 private:
  Response response_;
};

}  // namespace

std::unique_ptr<AnswerBuilder> MakeChatAnswer(const Tokenizer& tokenizer,
                                              ChatResponseOptions options) {
  return std::make_unique<BuilderOf<ChatResponse, ChatResponseOptions>>(tokenizer,
                                                                        std::move(options));
}

std::unique_ptr<AnswerBuilder> MakeCompletionsAnswer(const Tokenizer& tokenizer,
                                                     CompletionsResponseOptions options) {
  return std::make_unique<BuilderOf<CompletionsResponse, CompletionsResponseOptions>>(
      tokenizer, std::move(options));
}

}  // namespace deepinfer
