#include "server/block_answer.h"

#include <utility>

#include "base/json_writer.h"
#include "server/logprobs.h"
#include "server/sse.h"

namespace deepinfer {
namespace {

class BlockAnswer final : public AnswerBuilder {
 public:
  BlockAnswer(const Tokenizer& tokenizer, BlockAnswerOptions options,
              std::unique_ptr<AnswerWriter> writer)
      : tokenizer_(tokenizer),
        options_(std::move(options)),
        writer_(std::move(writer)),
        tokens_(tokenizer, TokenSettings(options_)) {}

  ChoiceProgress OnEvent(int32_t /*choice*/, const TokenEvent& event,
                         std::vector<std::string>* events) override;
  void Queue(std::vector<std::string>* events) override;
  bool done() const override { return tokens_.succeeded(); }
  void Close(std::vector<std::string>* /*events*/) const override {}
  void Abort(const ApiError& error, std::string_view request_id,
             std::vector<std::string>* events) override;
  std::string_view keep_alive() const override { return kSsePing; }
  std::string Body(const ResponseMetrics* /*metrics*/) const override { return writer_->Body(); }
  UsageCounts usage() const override;
  MalformedCounts malformed() const override { return tokens_.malformed(); }
  int64_t num_nan_logprobs() const override { return num_nan_logprobs_; }
  std::string_view finish_reason(int32_t /*choice*/) const override {
    return tokens_.finish().reason;
  }

 private:
  static ChoiceTokenSettings TokenSettings(const BlockAnswerOptions& options) {
    ChoiceTokenSettings settings = options.tokens;
    settings.keep_ids = settings.keep_ids || options.on_tool_turn;
    return settings;
  }
  std::string LogprobsOf(const OutputEvent& event);
  AnswerEnd End() const;
  static void Append(const NamedEvents& named, std::vector<std::string>* events);

  const Tokenizer& tokenizer_;
  const BlockAnswerOptions options_;
  std::unique_ptr<AnswerWriter> writer_;
  ChoiceTokens tokens_;
  int64_t num_nan_logprobs_ = 0;
  bool started_ = false;
};

ChoiceProgress BlockAnswer::OnEvent(int32_t /*choice*/, const TokenEvent& event,
                                    std::vector<std::string>* events) {
  if (!tokens_.running()) return tokens_.progress();
  std::vector<OutputEvent> parsed;
  tokens_.Take(event, &parsed);
  NamedEvents named;
  const bool has_begun = !event.ids.empty() || tokens_.succeeded();
  if (has_begun && !std::exchange(started_, true)) {
    UsageCounts at_start = usage();
    at_start.completion_tokens = 0;
    at_start.reasoning_tokens = 0;
    writer_->Start(at_start, &named);
  }
  for (const OutputEvent& one : parsed) writer_->Take(one, LogprobsOf(one), &named);
  tokens_.ReleaseRecords(parsed);
  if (tokens_.ended_with_calls() && options_.on_tool_turn) {
    options_.on_tool_turn(tokens_.ids(), writer_->CallIds());
  }
  if (tokens_.succeeded()) writer_->End(End(), usage(), &named);
  Append(named, events);
  return tokens_.progress();
}

void BlockAnswer::Queue(std::vector<std::string>* events) {
  NamedEvents named;
  writer_->Queue(&named);
  Append(named, events);
}

void BlockAnswer::Abort(const ApiError& error, std::string_view request_id,
                        std::vector<std::string>* events) {
  NamedEvents named;
  writer_->Abort(error, request_id, &named);
  Append(named, events);
}

UsageCounts BlockAnswer::usage() const {
  UsageCounts usage;
  TakePromptCounters(tokens_.counters(), &usage);
  tokens_.AddOutputTo(&usage);
  usage.image_tokens = options_.image_tokens;
  return usage;
}

std::string BlockAnswer::LogprobsOf(const OutputEvent& event) {
  std::string out;
  JsonWriter json(&out);
  for (int64_t token : event.tokens) {
    const TokenRecord& record = tokens_.record(token);
    WriteChatLogprob(tokenizer_, record.id, record.logprobs, &num_nan_logprobs_, &json);
  }
  return out;
}

AnswerEnd BlockAnswer::End() const {
  AnswerEnd end;
  end.reason = tokens_.finish().reason;
  if (!tokens_.stop_string().empty()) end.stop_string = tokens_.stop_string();
  end.context_full = options_.limited_by_context;
  return end;
}

void BlockAnswer::Append(const NamedEvents& named, std::vector<std::string>* events) {
  for (const NamedEvent& event : named) events->push_back(SseEvent(event.name, event.json));
}

}  // namespace

std::unique_ptr<AnswerBuilder> MakeBlockAnswer(const Tokenizer& tokenizer,
                                               BlockAnswerOptions options,
                                               std::unique_ptr<AnswerWriter> writer) {
  return std::make_unique<BlockAnswer>(tokenizer, std::move(options), std::move(writer));
}

}  // namespace deepinfer
