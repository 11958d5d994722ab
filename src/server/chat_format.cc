#include "server/chat_format.h"

#include <openssl/rand.h>

#include "base/check.h"
#include "base/json_writer.h"

namespace deepinfer {
namespace {

constexpr std::string_view kIdLetters =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
constexpr int kIdLength = 24;

void WriteNullable(const std::optional<std::string>& text, JsonWriter* json) {
  if (text) {
    json->String(*text);
  } else {
    json->Null();
  }
}

// `value_json` under the configured name or names.
void WriteReasoning(const ChatFormat& format, const std::optional<std::string_view>& text,
                    JsonWriter* json) {
  for (std::string_view name : {"reasoning_content", "reasoning"}) {
    const ReasoningField own =
        name == "reasoning" ? ReasoningField::kReasoning : ReasoningField::kReasoningContent;
    if (format.reasoning_field != own && format.reasoning_field != ReasoningField::kBoth) continue;
    json->Key(name);
    if (text) {
      json->String(*text);
    } else {
      json->Null();
    }
  }
}

void WriteTextDelta(const ChatFormat& format, bool is_reasoning, std::string_view text,
                    JsonWriter* json) {
  json->Key("content");
  if (is_reasoning) {
    json->Null();
  } else {
    json->String(text);
  }
  if (is_reasoning) {
    WriteReasoning(format, text, json);
  } else if (format.thinking) {
    WriteReasoning(format, std::nullopt, json);
  }
}

void WriteCallDelta(const ChatChunk& chunk, JsonWriter* json) {
  const bool starts = chunk.delta == ChatDelta::kCallStart;
  json->Key("tool_calls").BeginArray().BeginObject();
  json->Field("index", chunk.call_index);
  if (starts) json->Field("id", chunk.call_id).Field("type", "function");
  json->Key("function").BeginObject();
  if (starts) json->Field("name", chunk.text);
  json->Field("arguments", starts ? std::string_view() : chunk.text);
  json->EndObject().EndObject().EndArray();
}

void WriteDelta(const ChatFormat& format, const ChatChunk& chunk, JsonWriter* json) {
  json->Key("delta").BeginObject();
  switch (chunk.delta) {
    case ChatDelta::kRole:
      json->Field("role", "assistant");
      WriteTextDelta(format, format.starts_in_reasoning, "", json);
      break;
    case ChatDelta::kContent:
      WriteTextDelta(format, false, chunk.text, json);
      break;
    case ChatDelta::kReasoning:
      WriteTextDelta(format, true, chunk.text, json);
      break;
    case ChatDelta::kCallStart:
    case ChatDelta::kArguments:
      WriteCallDelta(chunk, json);
      break;
    case ChatDelta::kFinish:
      if (format.reference) WriteTextDelta(format, false, "", json);
      break;
  }
  json->EndObject();
}

// `content` and `reasoning` are JSON objects joined by commas.
void WriteLogprobs(const ChatFormat& format, std::string_view content, std::string_view reasoning,
                   bool has_reasoning, JsonWriter* json) {
  const auto list = [&](std::string_view key, std::string_view entries) {
    json->Key(key).BeginArray();
    if (!entries.empty()) json->Raw(entries);
    json->EndArray();
  };
  json->BeginObject();
  if (!format.reference || !content.empty()) list("content", content);
  if (has_reasoning) list("reasoning_content", reasoning);
  if (!format.reference) json->Key("refusal").Null();
  json->EndObject();
}

void WriteChunkHead(const ChatFormat& format, JsonWriter* json) {
  json->BeginObject();
  json->Field("id", format.id);
  json->Field("object", "chat.completion.chunk");
  json->Field("created", format.created_s);
  json->Field("model", format.model);
  json->Key("system_fingerprint");
  WriteNullable(format.system_fingerprint, json);
  if (!format.service_tier.empty()) json->Field("service_tier", format.service_tier);
}

void WriteMessage(const ChatFormat& format, const ChatMessage& message, JsonWriter* json) {
  json->Key("message").BeginObject();
  json->Field("role", "assistant");
  json->Field("content", message.content);
  if (format.reference ? format.starts_in_reasoning : format.thinking) {
    WriteReasoning(format, message.reasoning, json);
  }
  if (!message.calls.empty()) {
    json->Key("tool_calls").BeginArray();
    int64_t index = 0;
    for (const ChatToolCall& call : message.calls) {
      json->BeginObject();
      json->Field("index", index++);
      json->Field("id", call.id).Field("type", "function");
      json->Key("function").BeginObject();
      json->Field("name", call.name).Field("arguments", call.arguments);
      json->EndObject().EndObject();
    }
    json->EndArray();
  }
  if (!format.reference) json->Key("refusal").Null();
  json->EndObject();
}

void WriteChoiceBody(const ChatFormat& format, const ChatAnswerChoice& choice, JsonWriter* json) {
  const ChatMessage& message = *choice.message;
  json->BeginObject();
  json->Field("index", choice.index);
  WriteMessage(format, message, json);
  json->Key("logprobs");
  if (choice.logprobs) {
    const bool has_reasoning =
        format.reference ? !message.reasoning_logprobs.empty() : format.thinking;
    WriteLogprobs(format, message.content_logprobs, message.reasoning_logprobs, has_reasoning,
                  json);
  } else {
    json->Null();
  }
  json->Field("finish_reason", choice.finish->reason);
  if (!format.reference) json->Key("stop_reason").Raw(choice.finish->stop_reason_json);
  if (!choice.token_ids_json.empty()) json->Key("token_ids").Raw(choice.token_ids_json);
  json->EndObject();
}

}  // namespace

void ChatMessage::Apply(const OutputEvent& event,
                        const std::function<std::string(int32_t)>& make_call_id) {
  switch (event.kind) {
    case OutputEventKind::kReasoning:
      reasoning += event.text;
      break;
    case OutputEventKind::kContent:
      content += event.text;
      break;
    case OutputEventKind::kCallStart:
      calls.push_back({make_call_id(event.call_index), event.text, {}});
      break;
    case OutputEventKind::kArguments:
      calls.back().arguments += event.text;
      break;
    case OutputEventKind::kCallEnd:
    case OutputEventKind::kStopMatched:
      break;
  }
}

std::vector<std::string> ChatMessage::CallIds() const {
  std::vector<std::string> ids;
  ids.reserve(calls.size());
  for (const ChatToolCall& call : calls) ids.push_back(call.id);
  return ids;
}

void ChatMessage::AddLogprobs(OutputEventKind kind, std::string_view entries) {
  if (entries.empty()) return;
  std::string& all = kind == OutputEventKind::kReasoning ? reasoning_logprobs : content_logprobs;
  if (!all.empty()) all += ',';
  all += entries;
}

std::string NewToolCallId(int32_t index) {
  std::string id = index < 10 ? "call_0" : "call_";
  id += std::to_string(index);
  id += '_';
  // Bytes of the last, incomplete round over the letters are drawn again: every letter is equally
  // likely.
  constexpr size_t kUnbiased = 256 / kIdLetters.size() * kIdLetters.size();
  int num_letters = 0;
  while (num_letters < kIdLength) {
    unsigned char random[kIdLength];
    DI_CHECK(RAND_bytes(random, sizeof(random)) == 1);
    for (unsigned char byte : random) {
      if (byte >= kUnbiased || num_letters == kIdLength) continue;
      id += kIdLetters[byte % kIdLetters.size()];
      ++num_letters;
    }
  }
  return id;
}

std::string WriteChatChunk(const ChatFormat& format, const ChatChunk& chunk) {
  std::string out;
  out.reserve(chunk.text.size() + chunk.logprobs.size() + 384);
  JsonWriter json(&out);
  WriteChunkHead(format, &json);
  if (!chunk.prompt_token_ids_json.empty()) {
    json.Key("prompt_token_ids").Raw(chunk.prompt_token_ids_json);
  }
  json.Key("choices").BeginArray().BeginObject();
  json.Field("index", chunk.choice);
  WriteDelta(format, chunk, &json);
  json.Key("logprobs");
  if (chunk.logprobs.empty()) {
    json.Null();
  } else if (chunk.delta == ChatDelta::kReasoning) {
    WriteLogprobs(format, {}, chunk.logprobs, true, &json);
  } else {
    WriteLogprobs(format, chunk.logprobs, {}, false, &json);
  }
  json.Key("finish_reason");
  if (chunk.finish == nullptr) {
    json.Null();
  } else {
    json.String(chunk.finish->reason);
    if (!format.reference) json.Key("stop_reason").Raw(chunk.finish->stop_reason_json);
  }
  if (!chunk.token_ids_json.empty()) json.Key("token_ids").Raw(chunk.token_ids_json);
  json.EndObject().EndArray();
  if (!chunk.usage_json.empty()) json.Key("usage").Raw(chunk.usage_json);
  json.EndObject();
  return out;
}

std::string WriteChatUsageChunk(const ChatFormat& format, std::string_view usage_json) {
  std::string out;
  JsonWriter json(&out);
  WriteChunkHead(format, &json);
  json.Key("choices").BeginArray().EndArray();
  json.Key("usage").Raw(usage_json);
  json.EndObject();
  return out;
}

std::string WriteChatBody(const ChatFormat& format, const ChatAnswer& body) {
  std::string out;
  JsonWriter json(&out);
  json.BeginObject();
  json.Field("id", format.id);
  json.Field("object", "chat.completion");
  json.Field("created", format.created_s);
  json.Field("model", format.model);
  json.Key("choices").BeginArray();
  for (const ChatAnswerChoice& choice : body.choices) WriteChoiceBody(format, choice, &json);
  json.EndArray();
  json.Key("usage").Raw(body.usage_json);
  json.Key("system_fingerprint");
  WriteNullable(format.system_fingerprint, &json);
  if (!format.service_tier.empty()) json.Field("service_tier", format.service_tier);
  if (!body.prompt_token_ids_json.empty()) {
    json.Key("prompt_token_ids").Raw(body.prompt_token_ids_json);
  }
  if (!body.metrics_json.empty()) json.Key("metrics").Raw(body.metrics_json);
  json.EndObject();
  return out;
}

}  // namespace deepinfer
