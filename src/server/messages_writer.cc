#include "server/messages_writer.h"

#include <boost/json.hpp>
#include <utility>

#include "base/json_writer.h"
#include "text/json_text.h"
#include "text/python_json.h"

namespace deepinfer {
namespace {

constexpr std::string_view kPing = R"({"type":"ping"})";

std::string JsonString(std::string_view text) {
  std::string out;
  JsonWriter(&out).String(text);
  return out;
}

// The object a client gets as `input`; {} for text that is no JSON object, as of a truncated call.
std::string InputObject(const std::string& arguments) {
  JsonDocument document;
  JsonFailure failure;
  if (!ParseJson(arguments, &document, &failure) || !document.root().is_object()) return "{}";
  return CompactJson(document.root());
}

}  // namespace

std::string_view MessagesStopReason(const AnswerEnd& end) {
  if (end.stop_string) return "stop_sequence";
  if (end.reason == "tool_calls") return "tool_use";
  if (end.reason == "content_filter") return "refusal";
  if (end.reason != "length") return "end_turn";
  return end.context_full ? "model_context_window_exceeded" : "max_tokens";
}

MessagesWriter::MessagesWriter(MessagesFormat format,
                               std::function<std::string(int32_t)> make_call_id)
    : format_(std::move(format)), make_call_id_(std::move(make_call_id)) {}

void MessagesWriter::Start(const UsageCounts& usage, NamedEvents* events) {
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Field("type", "message_start").Key("message");
  WriteMessage(usage, &json);
  json.EndObject();
  events->push_back({"message_start", std::move(out)});
  if (format_.starts_in_reasoning) Open({BlockKind::kThinking, {}, {}, {}}, events);
}

void MessagesWriter::Take(const OutputEvent& event, std::string_view /*logprobs*/,
                          NamedEvents* events) {
  const auto continue_block = [&](BlockKind kind) {
    if (!open_ || blocks_.back().kind != kind) Open({kind, {}, {}, {}}, events);
    Add(event.text, events);
  };
  switch (event.kind) {
    case OutputEventKind::kReasoning:
      continue_block(BlockKind::kThinking);
      break;
    case OutputEventKind::kContent:
      continue_block(BlockKind::kText);
      break;
    case OutputEventKind::kCallStart:
      Open({BlockKind::kToolUse, {}, make_call_id_(event.call_index), event.text}, events);
      break;
    case OutputEventKind::kArguments:
      Add(event.text, events);
      break;
    case OutputEventKind::kCallEnd:
    case OutputEventKind::kStopMatched:
      break;
  }
}

void MessagesWriter::End(const AnswerEnd& end, const UsageCounts& usage, NamedEvents* events) {
  Close(events);
  usage_ = usage;
  stop_reason_json_ = JsonString(MessagesStopReason(end));
  if (end.stop_string) stop_sequence_json_ = JsonString(*end.stop_string);
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Field("type", "message_delta").Key("delta").BeginObject();
  json.Key("stop_reason").Raw(stop_reason_json_).Key("stop_sequence").Raw(stop_sequence_json_);
  json.EndObject().Key("usage");
  WriteUsage(usage, &json);
  json.EndObject();
  events->push_back({"message_delta", std::move(out)});
  events->push_back({"message_stop", R"({"type":"message_stop"})"});
}

void MessagesWriter::Abort(const ApiError& error, std::string_view request_id,
                           NamedEvents* events) {
  events->push_back({"error", AnthropicErrorBody(error, request_id)});
}

std::string MessagesWriter::Body() const {
  std::string out;
  JsonWriter json(&out);
  WriteMessage(usage_, &json);
  return out;
}

std::vector<std::string> MessagesWriter::CallIds() const {
  std::vector<std::string> ids;
  for (const Block& block : blocks_) {
    if (block.kind == BlockKind::kToolUse) ids.push_back(block.id);
  }
  return ids;
}

void MessagesWriter::Open(Block block, NamedEvents* events) {
  Close(events);
  const bool is_first = blocks_.empty();
  blocks_.push_back(std::move(block));
  open_ = true;
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Field("type", "content_block_start");
  json.Field("index", static_cast<int64_t>(blocks_.size()) - 1).Key("content_block");
  WriteBlock(blocks_.back(), /*as_opened=*/true, &json);
  json.EndObject();
  events->push_back({"content_block_start", std::move(out)});
  if (is_first) events->push_back({"ping", std::string(kPing)});
}

void MessagesWriter::Close(NamedEvents* events) {
  if (!std::exchange(open_, false)) return;
  const auto index = static_cast<int64_t>(blocks_.size()) - 1;
  if (blocks_.back().kind == BlockKind::kThinking) {
    std::string out;
    JsonWriter json(&out);
    json.BeginObject().Field("type", "content_block_delta").Field("index", index);
    json.Key("delta").BeginObject().Field("type", "signature_delta");
    json.Field("signature", format_.id).EndObject().EndObject();
    events->push_back({"content_block_delta", std::move(out)});
  }
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Field("type", "content_block_stop").Field("index", index).EndObject();
  events->push_back({"content_block_stop", std::move(out)});
}

void MessagesWriter::Add(std::string_view text, NamedEvents* events) {
  Block& block = blocks_.back();
  block.text += text;
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Field("type", "content_block_delta");
  json.Field("index", static_cast<int64_t>(blocks_.size()) - 1).Key("delta").BeginObject();
  switch (block.kind) {
    case BlockKind::kThinking:
      json.Field("type", "thinking_delta").Field("thinking", text);
      break;
    case BlockKind::kText:
      json.Field("type", "text_delta").Field("text", text);
      break;
    case BlockKind::kToolUse:
      json.Field("type", "input_json_delta").Field("partial_json", text);
      break;
  }
  json.EndObject().EndObject();
  events->push_back({"content_block_delta", std::move(out)});
}

void MessagesWriter::WriteBlock(const Block& block, bool as_opened, JsonWriter* json) const {
  json->BeginObject();
  switch (block.kind) {
    case BlockKind::kThinking:
      json->Field("type", "thinking").Field("thinking", block.text);
      json->Field("signature", as_opened ? std::string_view() : std::string_view(format_.id));
      break;
    case BlockKind::kText:
      json->Field("type", "text").Field("text", block.text);
      break;
    case BlockKind::kToolUse:
      json->Field("type", "tool_use").Field("id", block.id).Field("name", block.name);
      json->Key("input").Raw(as_opened ? std::string("{}") : InputObject(block.text));
      break;
  }
  json->EndObject();
}

void MessagesWriter::WriteMessage(const UsageCounts& usage, JsonWriter* json) const {
  json->BeginObject().Field("id", format_.id).Field("type", "message");
  json->Field("role", "assistant").Field("model", format_.model).Key("content").BeginArray();
  for (const Block& block : blocks_) WriteBlock(block, /*as_opened=*/false, json);
  json->EndArray().Key("stop_reason").Raw(stop_reason_json_);
  json->Key("stop_sequence").Raw(stop_sequence_json_).Key("usage");
  WriteUsage(usage, json);
  json->EndObject();
}

void MessagesWriter::WriteUsage(const UsageCounts& usage, JsonWriter* json) const {
  const int64_t written = format_.counts_cache_writes ? usage.cache_write_tokens : 0;
  json->BeginObject();
  json->Field("input_tokens", usage.prompt_tokens - usage.cached_tokens - written);
  json->Field("cache_creation_input_tokens", written);
  json->Field("cache_read_input_tokens", usage.cached_tokens);
  if (!format_.reference) {
    json->Key("cache_creation").BeginObject();
    json->Field("ephemeral_5m_input_tokens", format_.cache_lives_1h ? 0 : written);
    json->Field("ephemeral_1h_input_tokens", format_.cache_lives_1h ? written : 0);
    json->EndObject();
  }
  json->Field("output_tokens", usage.completion_tokens);
  if (!format_.reference) {
    json->Key("output_tokens_details").BeginObject();
    json->Field("thinking_tokens", usage.reasoning_tokens).EndObject();
  }
  json->Field("service_tier", "standard");
  if (!format_.reference && format_.usage_extension) WriteUsageExtension(usage, json);
  json->EndObject();
}

}  // namespace deepinfer
