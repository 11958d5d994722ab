#include "server/completions_choice.h"

#include <set>
#include <utility>

#include "base/json_writer.h"
#include "base/utf8.h"
#include "server/logprobs.h"

namespace deepinfer {
namespace {

int64_t CountCodePoints(std::string_view text) {
  int64_t count = 0;
  for (char c : text) {
    if ((static_cast<unsigned char>(c) & 0xC0) != 0x80) ++count;
  }
  return count;
}

std::string JsonString(std::string_view text) {
  std::string out;
  JsonWriter(&out).String(text);
  return out;
}

std::string JsonFloat(float number) {
  std::string out;
  JsonWriter(&out).Float(number);
  return out;
}

}  // namespace

void CompletionLogprobs::Add(int32_t id, const TokenLogprobs* logprobs, int64_t* num_nan) {
  const std::string_view bytes = tokenizer_.TokenBytes(id);
  Entry entry{JsonString(CompletionsTokenText(bytes)), "null", "null", num_code_points_};
  if (logprobs != nullptr) {
    entry.logprob = JsonFloat(PrintableLogprob(logprobs->logprob, num_nan));
    entry.top = TopJson(id, *logprobs, num_nan);
  }
  entries_.push_back(std::move(entry));
  partial_ += bytes;
  std::string complete;
  DrainCompleteUtf8(&partial_, &complete);
  num_code_points_ += CountCodePoints(complete);
}

std::string CompletionLogprobs::TopJson(int32_t id, const TokenLogprobs& logprobs,
                                        int64_t* num_nan) const {
  std::string out;
  JsonWriter json(&out);
  json.BeginObject();
  // Different tokens may print alike; the likelier one keeps the key.
  std::set<std::string> seen;
  const auto add = [&](int32_t token, float logprob) {
    std::string text = CompletionsTokenText(tokenizer_.TokenBytes(token));
    if (!seen.insert(text).second) return;
    json.Raw(JsonString(text) + ":" + JsonFloat(PrintableLogprob(logprob, num_nan)));
  };
  for (const auto& [top_id, top_logprob] : logprobs.top) add(top_id, top_logprob);
  int64_t counted_above = 0;
  if (seen.count(CompletionsTokenText(tokenizer_.TokenBytes(id))) == 0) {
    json.Raw(JsonString(CompletionsTokenText(tokenizer_.TokenBytes(id))) + ":" +
             JsonFloat(PrintableLogprob(logprobs.logprob, &counted_above)));
  }
  json.EndObject();
  return out;
}

std::string CompletionLogprobs::Json(size_t begin) const {
  std::string out;
  JsonWriter json(&out);
  json.BeginObject();
  json.Key("tokens").BeginArray();
  for (size_t i = begin; i < entries_.size(); ++i) json.Raw(entries_[i].token);
  json.EndArray();
  json.Key("token_logprobs").BeginArray();
  for (size_t i = begin; i < entries_.size(); ++i) json.Raw(entries_[i].logprob);
  json.EndArray();
  json.Key("top_logprobs").BeginArray();
  for (size_t i = begin; i < entries_.size(); ++i) json.Raw(entries_[i].top);
  json.EndArray();
  json.Key("text_offset").BeginArray();
  for (size_t i = begin; i < entries_.size(); ++i) json.Int(entries_[i].text_offset);
  json.EndArray();
  json.EndObject();
  return out;
}

std::string CompletionLogprobs::TakeNew() {
  std::string out = Json(num_taken_);
  num_taken_ = entries_.size();
  return out;
}

CompletionsChoice::CompletionsChoice(const Tokenizer& tokenizer, const CompletionsFormat& format,
                                     CompletionsChoiceSettings settings)
    : tokenizer_(tokenizer),
      format_(format),
      settings_(std::move(settings)),
      tokens_(tokenizer, {.eos_token_id = settings_.eos_token_id,
                          .logprobs = settings_.logprobs,
                          .keep_ids = settings_.return_token_ids,
                          .parser = settings_.parser}),
      logprobs_(tokenizer) {}

ChoiceProgress CompletionsChoice::Take(const TokenEvent& event) {
  if (!tokens_.running()) return tokens_.progress();
  if (settings_.echo && !echoed_) Echo(event);
  for (const TokenLogprobs& logprobs : event.logprobs) {
    int64_t ignored = 0;
    sum_of_logprobs_ += PrintableLogprob(logprobs.logprob, &ignored);
    ++num_summed_;
  }
  std::vector<OutputEvent> events;
  tokens_.Take(event, &events);
  Absorb(events);
  // One entry for each committed token, the end token too: clients that score a prompt count on
  // exactly one behind it (api.md §8).
  const bool has_end_token = event.stop_token_id >= 0 && tokens_.stop_string().empty();
  if (settings_.logprobs && has_end_token && !event.logprobs.empty()) {
    logprobs_.Add(event.stop_token_id, &event.logprobs.back(), &num_nan_logprobs_);
  }
  if (tokens_.hit_deadline() && num_written_bytes_ > 0) tokens_.GiveUp();
  return tokens_.progress();
}

double CompletionsChoice::MeanLogprob() const {
  return num_summed_ == 0 ? 0 : sum_of_logprobs_ / static_cast<double>(num_summed_);
}

void CompletionsChoice::Echo(const TokenEvent& event) {
  echoed_ = true;
  const std::span<const int32_t> prompt = settings_.prompt;
  const size_t begin = std::min(settings_.num_hidden_prompt_tokens, prompt.size());
  text_ += tokenizer_.Decode(prompt.subspan(begin));
  if (!settings_.logprobs) return;
  for (size_t i = begin; i < prompt.size(); ++i) {
    const bool has_value = i > begin && i >= 1 && i - 1 < event.prompt_logprobs.size();
    logprobs_.Add(prompt[i], has_value ? &event.prompt_logprobs[i - 1] : nullptr,
                  &num_nan_logprobs_);
  }
}

void CompletionsChoice::Absorb(const std::vector<OutputEvent>& events) {
  for (const OutputEvent& event : events) {
    if (event.kind == OutputEventKind::kContent) text_ += event.text;
    for (int64_t token : event.tokens) {
      const TokenRecord& record = tokens_.record(token);
      logprobs_.Add(record.id, &record.logprobs, &num_nan_logprobs_);
    }
  }
  tokens_.ReleaseRecords(events);
}

bool CompletionsChoice::WriteChunks(const ChunkUsage& usage, std::vector<std::string>* chunks) {
  if (num_written_bytes_ < text_.size()) {
    chunks->push_back(Chunk(std::string_view(text_).substr(num_written_bytes_), false, usage));
    num_written_bytes_ = text_.size();
  }
  if (succeeded() && !wrote_finish_) {
    wrote_finish_ = true;
    chunks->push_back(Chunk({}, true, usage));
  }
  return num_written_bytes_ > 0 || wrote_finish_;
}

std::string CompletionsChoice::Chunk(std::string_view text, bool finishes,
                                     const ChunkUsage& usage) {
  std::string out;
  JsonWriter json(&out);
  json.BeginObject();
  json.Field("id", format_.id);
  json.Field("object", "text_completion");
  json.Field("created", format_.created_s);
  json.Field("model", format_.model);
  json.Field("system_fingerprint", format_.system_fingerprint);
  json.Key("choices").BeginArray().BeginObject();
  json.Field("index", settings_.index);
  json.Field("text", text);
  json.Key("logprobs");
  if (settings_.logprobs && (!finishes || logprobs_.has_new())) {
    json.Raw(logprobs_.TakeNew());
  } else {
    json.Null();
  }
  json.Key("finish_reason");
  if (finishes) {
    json.String(tokens_.finish().reason);
    json.Key("stop_reason").Raw(tokens_.finish().stop_reason_json);
  } else {
    json.Null();
  }
  if (settings_.return_token_ids) {
    json.Key("token_ids").Raw(IdsJson(std::span(tokens_.ids()).subspan(num_written_ids_)));
    num_written_ids_ = tokens_.ids().size();
  }
  json.EndObject().EndArray();
  const std::string& usage_json = finishes ? usage.on_finish : usage.on_chunk;
  if (!usage_json.empty()) json.Key("usage").Raw(usage_json);
  json.EndObject();
  return out;
}

void CompletionsChoice::WriteBody(int32_t index, JsonWriter* json) const {
  json->BeginObject();
  json->Field("index", index);
  json->Field("text", text_);
  json->Key("logprobs");
  if (settings_.logprobs) {
    json->Raw(logprobs_.All());
  } else {
    json->Null();
  }
  json->Field("finish_reason", tokens_.finish().reason);
  json->Key("stop_reason").Raw(tokens_.finish().stop_reason_json);
  if (settings_.return_token_ids) {
    json->Key("token_ids").Raw(IdsJson(tokens_.ids()));
    json->Key("prompt_token_ids").Raw(IdsJson(settings_.prompt));
  }
  json->EndObject();
}

}  // namespace deepinfer
