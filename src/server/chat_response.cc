#include "server/chat_response.h"

#include <deque>
#include <utility>

#include "base/check.h"
#include "base/json_writer.h"
#include "server/chat_choice.h"
#include "server/chat_request.h"
#include "server/choice_order.h"

namespace deepinfer {
namespace {

ParserStart ToParserStart(OutputStart start) {
  switch (start) {
    case OutputStart::kContentStart:
      return ParserStart::kContentStart;
    case OutputStart::kReasoningStart:
      return ParserStart::kReasoningStart;
    case OutputStart::kReasoningContinuation:
      return ParserStart::kReasoningContinuation;
    case OutputStart::kContentContinuation:
      return ParserStart::kContentContinuation;
  }
  return ParserStart::kContentStart;
}

ChatFormat MakeFormat(const ChatResponseOptions& options) {
  ChatFormat format;
  format.id = options.id;
  format.model = options.model;
  format.system_fingerprint = options.system_fingerprint;
  format.service_tier = options.service_tier;
  format.created_s = options.created_s;
  format.thinking = options.thinking;
  format.starts_in_reasoning = options.parser.start == ParserStart::kReasoningStart ||
                               options.parser.start == ParserStart::kReasoningContinuation;
  format.reasoning_field = options.reasoning_field;
  return format;
}

}  // namespace

ParserSettings MakeParserSettings(const ParsingSettings& parsing, const SpecialTokens& special) {
  ParserSettings settings;
  settings.start = ToParserStart(parsing.start);
  settings.parse_tool_calls = parsing.parse_tool_calls;
  settings.starts_in_tool_calls = parsing.starts_in_tool_calls;
  settings.parse_json_output = parsing.parse_json_output;
  settings.stop_strings = parsing.stop_sequences;
  settings.include_stop_string = parsing.include_stop_in_output;
  settings.num_tokens_without_stop = parsing.num_tokens_without_stop;
  settings.think_end_id = special.think_end;
  settings.dsml_id = special.dsml;
  return settings;
}

struct ChatResponse::Impl {
  Impl(const Tokenizer& tokenizer, ChatResponseOptions o)
      : options(std::move(o)),
        format(MakeFormat(options)),
        order(static_cast<size_t>(options.num_choices)) {
    if (options.return_token_ids) prompt_ids_json = IdsJson(options.prompt_ids);
    for (int32_t i = 0; i < options.num_choices; ++i) {
      choices.emplace_back(tokenizer, format,
                           ChatChoiceSettings{.index = i,
                                              .eos_token_id = options.eos_token_id,
                                              .stream = options.stream,
                                              .logprobs = options.logprobs,
                                              .return_token_ids = options.return_token_ids,
                                              .echo = options.echo,
                                              .parser = options.parser,
                                              .on_tool_turn = options.on_tool_turn});
    }
  }

  UsageCounts Usage() const;
  std::string UsageJson() const;
  ChunkUsage UsageOfChunks() const;

  const ChatResponseOptions options;
  const ChatFormat format;
  ChoiceOrder order;
  std::deque<ChatChoice> choices;  // a deque: choices do not move
  std::string prompt_ids_json;
};

UsageCounts ChatResponse::Impl::Usage() const {
  UsageCounts usage;
  bool has_prompt = false;
  for (const ChatChoice& choice : choices) {
    // The prompt is shared: it counts once, as its first known choice saw it.
    if (!has_prompt && choice.tokens().counters().prompt_tokens > 0) {
      TakePromptCounters(choice.tokens().counters(), &usage);
      has_prompt = true;
    }
    choice.tokens().AddOutputTo(&usage);
  }
  usage.image_tokens = options.image_tokens;
  return usage;
}

std::string ChatResponse::Impl::UsageJson() const {
  std::string out;
  JsonWriter json(&out);
  WriteOpenAiUsage(Usage(), options.usage_extension, &json);
  return out;
}

ChunkUsage ChatResponse::Impl::UsageOfChunks() const {
  ChunkUsage usage;
  if (options.include_usage) usage = {"null", "null"};
  if (options.continuous_usage) usage.on_chunk = usage.on_finish = UsageJson();
  if (options.usage_style == StreamUsageStyle::kDeepSeek) usage.on_finish = UsageJson();
  return usage;
}

ChatResponse::ChatResponse(const Tokenizer& tokenizer, ChatResponseOptions options)
    : impl_(std::make_unique<Impl>(tokenizer, std::move(options))) {}
ChatResponse::~ChatResponse() = default;

ChoiceProgress ChatResponse::OnEvent(int32_t choice, const TokenEvent& event,
                                     std::vector<std::string>* chunks) {
  DI_CHECK(choice >= 0 && static_cast<size_t>(choice) < impl_->choices.size());
  ChatChoice& target = impl_->choices[static_cast<size_t>(choice)];
  const ChoiceProgress progress = target.Take(event);
  if (impl_->options.stream) {
    const ChunkUsage usage = impl_->UsageOfChunks();
    impl_->order.Pass(static_cast<size_t>(choice), [&](size_t i) {
      return impl_->choices[i].WriteChunks(usage, impl_->prompt_ids_json, chunks);
    });
  }
  return progress;
}

bool ChatResponse::done() const {
  for (const ChatChoice& choice : impl_->choices) {
    if (!choice.succeeded()) return false;
  }
  return true;
}

std::string ChatResponse::UsageChunk() const {
  const ChatResponseOptions& options = impl_->options;
  if (!options.include_usage || options.usage_style == StreamUsageStyle::kDeepSeek) return {};
  return WriteChatUsageChunk(impl_->format, impl_->UsageJson());
}

std::string ChatResponse::Body(const ResponseMetrics* metrics) const {
  const ChatResponseOptions& options = impl_->options;
  ChatAnswer body;
  std::vector<std::string> ids;
  ids.reserve(impl_->choices.size());
  for (const ChatChoice& choice : impl_->choices) {
    ids.push_back(options.return_token_ids ? IdsJson(choice.tokens().ids()) : std::string());
    body.choices.push_back({.index = static_cast<int32_t>(body.choices.size()),
                            .message = &choice.message(),
                            .finish = &choice.tokens().finish(),
                            .logprobs = options.logprobs,
                            .token_ids_json = ids.back()});
  }
  const std::string usage = impl_->UsageJson();
  const std::string metrics_json = metrics == nullptr ? std::string() : MetricsJson(*metrics);
  body.usage_json = usage;
  body.metrics_json = metrics_json;
  body.prompt_token_ids_json = impl_->prompt_ids_json;
  return WriteChatBody(impl_->format, body);
}

UsageCounts ChatResponse::usage() const { return impl_->Usage(); }

MalformedCounts ChatResponse::malformed() const {
  MalformedCounts sum;
  for (const ChatChoice& choice : impl_->choices) {
    for (size_t i = 0; i < kNumMalformedKinds; ++i) {
      sum.count[i] += choice.tokens().malformed().count[i];
    }
  }
  return sum;
}

int64_t ChatResponse::num_nan_logprobs() const {
  int64_t sum = 0;
  for (const ChatChoice& choice : impl_->choices) sum += choice.num_nan_logprobs();
  return sum;
}

std::string_view ChatResponse::finish_reason(int32_t choice) const {
  return impl_->choices[static_cast<size_t>(choice)].tokens().finish().reason;
}

}  // namespace deepinfer
