#include "server/completions_response.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "base/check.h"
#include "base/json_writer.h"
#include "server/choice_order.h"
#include "server/completions_choice.h"

namespace deepinfer {

struct CompletionsResponse::Impl {
  Impl(const Tokenizer& tokenizer, CompletionsResponseOptions o)
      : options(std::move(o)),
        format{options.id, options.model, options.system_fingerprint, options.created_s},
        order(options.prompts.size() * static_cast<size_t>(options.choices_per_prompt)) {
    ParserSettings parser;
    parser.start = ParserStart::kContentContinuation;  // nothing is trimmed
    parser.stop_strings = options.stop_strings;
    parser.include_stop_string = options.include_stop_string;
    parser.num_tokens_without_stop = options.num_tokens_without_stop;
    for (const std::vector<int32_t>& prompt : options.prompts) {
      for (int32_t j = 0; j < options.choices_per_prompt; ++j) {
        choices.emplace_back(
            tokenizer, format,
            CompletionsChoiceSettings{
                .index = static_cast<int32_t>(choices.size()),
                .eos_token_id = options.eos_token_id,
                .stream = options.stream,
                .logprobs = options.logprobs,
                .return_token_ids = options.return_token_ids,
                .echo = options.echo,
                .prompt = prompt,
                .num_hidden_prompt_tokens = static_cast<size_t>(options.num_hidden_prompt_tokens),
                .parser = parser});
      }
    }
  }

  // Prompt by prompt what the client gets: all choices, or the likeliest of them first.
  std::vector<const CompletionsChoice*> Answers() const;
  UsageCounts Usage() const;
  std::string UsageJson() const;
  ChunkUsage UsageOfChunks() const;

  const CompletionsResponseOptions options;
  const CompletionsFormat format;
  ChoiceOrder order;
  std::deque<CompletionsChoice> choices;  // a deque: choices do not move
};

std::vector<const CompletionsChoice*> CompletionsResponse::Impl::Answers() const {
  std::vector<const CompletionsChoice*> answers;
  for (const CompletionsChoice& choice : choices) answers.push_back(&choice);
  if (options.answers_per_prompt == 0) return answers;
  std::vector<const CompletionsChoice*> best;
  for (auto first = answers.begin(); first != answers.end(); first += options.choices_per_prompt) {
    std::stable_sort(first, first + options.choices_per_prompt, [](const auto* a, const auto* b) {
      return a->MeanLogprob() > b->MeanLogprob();
    });
    best.insert(best.end(), first, first + options.answers_per_prompt);
  }
  return best;
}

UsageCounts CompletionsResponse::Impl::Usage() const {
  UsageCounts sum;
  const auto per_prompt = static_cast<size_t>(options.choices_per_prompt);
  for (size_t prompt = 0; prompt < options.prompts.size(); ++prompt) {
    bool has_prompt = false;
    for (size_t j = 0; j < per_prompt; ++j) {
      const CompletionsChoice& choice = choices[prompt * per_prompt + j];
      choice.tokens().AddOutputTo(&sum);
      // Choices of one prompt share it: it counts once, as its first known choice saw it.
      if (has_prompt || choice.tokens().counters().prompt_tokens == 0) continue;
      has_prompt = true;
      UsageCounts one;
      TakePromptCounters(choice.tokens().counters(), &one);
      sum.prompt_tokens += one.prompt_tokens;
      sum.cached_tokens += one.cached_tokens;
      sum.computed_tokens += one.computed_tokens;
      sum.replayed_tokens += one.replayed_tokens;
      sum.cache_write_tokens += one.cache_write_tokens;
      for (size_t i = 0; i < one.cached_by_tier.size(); ++i) {
        sum.cached_by_tier[i] += one.cached_by_tier[i];
      }
    }
  }
  return sum;
}

std::string CompletionsResponse::Impl::UsageJson() const {
  std::string out;
  JsonWriter json(&out);
  WriteOpenAiUsage(Usage(), options.usage_extension, &json);
  return out;
}

ChunkUsage CompletionsResponse::Impl::UsageOfChunks() const {
  ChunkUsage usage;
  if (options.include_usage) usage = {"null", "null"};
  if (options.continuous_usage) usage.on_chunk = usage.on_finish = UsageJson();
  if (options.usage_style == StreamUsageStyle::kDeepSeek) usage.on_finish = UsageJson();
  return usage;
}

CompletionsResponse::CompletionsResponse(const Tokenizer& tokenizer,
                                         CompletionsResponseOptions options)
    : impl_(std::make_unique<Impl>(tokenizer, std::move(options))) {}
CompletionsResponse::~CompletionsResponse() = default;

ChoiceProgress CompletionsResponse::OnEvent(int32_t choice, const TokenEvent& event,
                                            std::vector<std::string>* chunks) {
  DI_CHECK(choice >= 0 && static_cast<size_t>(choice) < impl_->choices.size());
  CompletionsChoice& target = impl_->choices[static_cast<size_t>(choice)];
  const ChoiceProgress progress = target.Take(event);
  if (impl_->options.stream) {
    const ChunkUsage usage = impl_->UsageOfChunks();
    impl_->order.Pass(static_cast<size_t>(choice),
                      [&](size_t i) { return impl_->choices[i].WriteChunks(usage, chunks); });
  }
  return progress;
}

bool CompletionsResponse::done() const {
  for (const CompletionsChoice& choice : impl_->choices) {
    if (!choice.succeeded()) return false;
  }
  return true;
}

std::string CompletionsResponse::UsageChunk() const {
  const CompletionsResponseOptions& options = impl_->options;
  if (!options.include_usage || options.usage_style == StreamUsageStyle::kDeepSeek) return {};
  std::string out;
  JsonWriter json(&out);
  json.BeginObject();
  json.Field("id", options.id);
  json.Field("object", "text_completion");
  json.Field("created", options.created_s);
  json.Field("model", options.model);
  json.Field("system_fingerprint", options.system_fingerprint);
  json.Key("choices").BeginArray().EndArray();
  json.Key("usage").Raw(impl_->UsageJson());
  json.EndObject();
  return out;
}

std::string CompletionsResponse::Body(const ResponseMetrics* metrics) const {
  const CompletionsResponseOptions& options = impl_->options;
  std::string out;
  JsonWriter json(&out);
  json.BeginObject();
  json.Field("id", options.id);
  json.Field("object", "text_completion");
  json.Field("created", options.created_s);
  json.Field("model", options.model);
  json.Key("choices").BeginArray();
  int32_t index = 0;
  for (const CompletionsChoice* choice : impl_->Answers()) choice->WriteBody(index++, &json);
  json.EndArray();
  json.Key("usage").Raw(impl_->UsageJson());
  json.Field("system_fingerprint", options.system_fingerprint);
  if (metrics != nullptr) json.Key("metrics").Raw(MetricsJson(*metrics));
  json.EndObject();
  return out;
}

UsageCounts CompletionsResponse::usage() const { return impl_->Usage(); }

int64_t CompletionsResponse::num_nan_logprobs() const {
  int64_t sum = 0;
  for (const CompletionsChoice& choice : impl_->choices) sum += choice.num_nan_logprobs();
  return sum;
}

std::string_view CompletionsResponse::finish_reason(int32_t choice) const {
  return impl_->choices[static_cast<size_t>(choice)].tokens().finish().reason;
}

}  // namespace deepinfer
