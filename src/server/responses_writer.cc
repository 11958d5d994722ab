#include "server/responses_writer.h"

#include <array>
#include <boost/json.hpp>
#include <utility>

#include "base/json_writer.h"
#include "text/json_text.h"
#include "text/python_json.h"

namespace deepinfer {
namespace {

constexpr std::array<std::string_view, 5> kIdPrefixes = {"rs_", "msg_", "fc_", "ctc_", "tsc_"};

// The arguments of a search are an object on the wire; {} for text that is none.
std::string ArgumentsObject(const std::string& arguments) {
  JsonDocument document;
  JsonFailure failure;
  if (!ParseJson(arguments, &document, &failure) || !document.root().is_object()) return "{}";
  return CompactJson(document.root());
}

std::string_view FailureCode(const ApiError& error) {
  if (error.status == 429) return "rate_limit_exceeded";
  return error.status < 500 ? "invalid_prompt" : "server_error";
}

}  // namespace

ResponsesWriter::ResponsesWriter(ResponsesFormat format,
                                 std::function<std::string(int32_t)> make_call_id,
                                 std::function<int64_t()> now_s)
    : format_(std::move(format)),
      make_call_id_(std::move(make_call_id)),
      now_s_(std::move(now_s)) {}

void ResponsesWriter::Queue(NamedEvents* events) {
  status_ = "queued";
  WriteResponse("response.created", events);
  WriteResponse("response.queued", events);
  status_ = "in_progress";
}

void ResponsesWriter::Start(const UsageCounts& /*usage*/, NamedEvents* events) {
  if (sequence_number_ == 0) WriteResponse("response.created", events);
  WriteResponse("response.in_progress", events);
}

void ResponsesWriter::Take(const OutputEvent& event, std::string_view logprobs,
                           NamedEvents* events) {
  switch (event.kind) {
    case OutputEventKind::kReasoning:
      if (!IsOpen(ItemKind::kReasoning)) {
        Open(ItemKind::kReasoning, events);
        Announce(events);
      }
      Add(event.text, {}, events);
      break;
    case OutputEventKind::kContent:
      if (!IsOpen(ItemKind::kMessage)) {
        Open(ItemKind::kMessage, events);
        Announce(events);
      }
      Add(event.text, logprobs, events);
      break;
    case OutputEventKind::kCallStart:
      OpenCall(event, events);
      break;
    case OutputEventKind::kArguments:
      if (IsOpen(ItemKind::kCustom)) {
        const std::string text = custom_input_.Push(event.text);
        if (!text.empty()) Add(text, {}, events);
      } else {
        Add(event.text, {}, events);
      }
      break;
    case OutputEventKind::kCallEnd:
    case OutputEventKind::kStopMatched:
      break;
  }
}

void ResponsesWriter::End(const AnswerEnd& end, const UsageCounts& usage, NamedEvents* events) {
  const bool is_complete = end.reason == "stop" || end.reason == "tool_calls";
  Close(is_complete ? "completed" : "incomplete", events);
  status_ = is_complete ? "completed" : "incomplete";
  if (!is_complete) {
    const bool filtered = end.reason == "content_filter";
    incomplete_json_ =
        filtered ? R"({"reason":"content_filter"})" : R"({"reason":"max_output_tokens"})";
  }
  usage_ = usage;
  has_usage_ = true;
  completed_at_json_ = std::to_string(now_s_());
  WriteResponse(is_complete ? "response.completed" : "response.incomplete", events);
}

void ResponsesWriter::Abort(const ApiError& error, std::string_view /*request_id*/,
                            NamedEvents* events) {
  if (sequence_number_ == 0) Start({}, events);
  Close("incomplete", events);
  status_ = "failed";
  error_json_.clear();
  JsonWriter json(&error_json_);
  json.BeginObject().Field("code", FailureCode(error)).Field("message", error.message).EndObject();
  WriteResponse("response.failed", events);
}

std::vector<std::string> ResponsesWriter::CallIds() const {
  std::vector<std::string> ids;
  for (const Item& item : items_) {
    if (!item.call_id.empty()) ids.push_back(item.call_id);
  }
  return ids;
}

ResponsesWriter::Item& ResponsesWriter::Open(ItemKind kind, NamedEvents* events) {
  Close("completed", events);
  std::string id(kIdPrefixes[static_cast<size_t>(kind)]);
  id += format_.id + "_" + std::to_string(items_.size());
  Item& item = items_.emplace_back();
  item.kind = kind;
  item.id = std::move(id);
  open_ = true;
  return item;
}

void ResponsesWriter::OpenCall(const OutputEvent& event, NamedEvents* events) {
  if (IsOpen(ItemKind::kMessage)) items_.back().precedes_calls = true;
  const auto tool = format_.tools.find(event.text);
  ItemKind kind = ItemKind::kFunction;
  if (tool != format_.tools.end() && tool->second.kind == ResponsesToolKind::kCustom) {
    kind = ItemKind::kCustom;
    custom_input_ = CustomInput();
  }
  if (tool != format_.tools.end() && tool->second.kind == ResponsesToolKind::kSearch) {
    kind = ItemKind::kSearch;
  }
  Item& item = Open(kind, events);
  item.call_id = make_call_id_(event.call_index);
  item.name = tool == format_.tools.end() ? event.text : tool->second.name;
  if (tool != format_.tools.end()) item.name_space = tool->second.name_space;
  Announce(events);
}

// The item as it begins, and the part that its text goes into.
void ResponsesWriter::Announce(NamedEvents* events) {
  const Item& item = items_.back();
  const auto index = static_cast<int64_t>(items_.size()) - 1;
  Write(
      "response.output_item.added",
      [&](JsonWriter* json) {
        json->Key("item");
        WriteItem(item, json);
        json->Field("output_index", index);
      },
      events);
  if (item.kind != ItemKind::kReasoning && item.kind != ItemKind::kMessage) return;
  Write(
      "response.content_part.added",
      [&](JsonWriter* json) {
        json->Field("content_index", int64_t{0}).Field("item_id", item.id);
        json->Field("output_index", index).Key("part");
        WritePart(item, json);
      },
      events);
}

void ResponsesWriter::Add(std::string_view text, std::string_view logprobs, NamedEvents* events) {
  Item& item = items_.back();
  item.text += text;
  if (!logprobs.empty()) {
    if (!item.logprobs.empty()) item.logprobs += ',';
    item.logprobs += logprobs;
  }
  if (item.kind == ItemKind::kSearch) return;
  constexpr std::array<std::string_view, 4> kTypes = {
      "response.reasoning_text.delta", "response.output_text.delta",
      "response.function_call_arguments.delta", "response.custom_tool_call_input.delta"};
  const bool is_text = item.kind == ItemKind::kReasoning || item.kind == ItemKind::kMessage;
  Write(
      kTypes[static_cast<size_t>(item.kind)],
      [&](JsonWriter* json) {
        if (is_text) json->Field("content_index", int64_t{0});
        json->Field("delta", text).Field("item_id", item.id);
        if (item.kind == ItemKind::kMessage) {
          json->Key("logprobs").BeginArray();
          if (!logprobs.empty()) json->Raw(logprobs);
          json->EndArray();
        }
        json->Field("output_index", static_cast<int64_t>(items_.size()) - 1);
      },
      events);
}

void ResponsesWriter::Close(std::string_view status, NamedEvents* events) {
  if (!open_) return;
  if (IsOpen(ItemKind::kCustom)) {
    const std::string held = custom_input_.Finish();
    if (!held.empty()) Add(held, {}, events);
  }
  open_ = false;
  Item& item = items_.back();
  item.status = status;
  const auto index = static_cast<int64_t>(items_.size()) - 1;
  constexpr std::array<std::string_view, 4> kTypes = {
      "response.reasoning_text.done", "response.output_text.done",
      "response.function_call_arguments.done", "response.custom_tool_call_input.done"};
  const bool is_text = item.kind == ItemKind::kReasoning || item.kind == ItemKind::kMessage;
  if (item.kind != ItemKind::kSearch) {
    Write(
        kTypes[static_cast<size_t>(item.kind)],
        [&](JsonWriter* json) {
          if (is_text) json->Field("content_index", int64_t{0});
          json->Field("item_id", item.id);
          if (item.kind == ItemKind::kMessage) {
            json->Key("logprobs").BeginArray();
            if (!item.logprobs.empty()) json->Raw(item.logprobs);
            json->EndArray();
          }
          json->Field("output_index", index);
          const std::string_view member = is_text                            ? "text"
                                          : item.kind == ItemKind::kFunction ? "arguments"
                                                                             : "input";
          json->Field(member, item.text);
        },
        events);
  }
  if (is_text) {
    Write(
        "response.content_part.done",
        [&](JsonWriter* json) {
          json->Field("content_index", int64_t{0}).Field("item_id", item.id);
          json->Field("output_index", index).Key("part");
          WritePart(item, json);
        },
        events);
  }
  Write(
      "response.output_item.done",
      [&](JsonWriter* json) {
        json->Key("item");
        WriteItem(item, json);
        json->Field("output_index", index);
      },
      events);
}

void ResponsesWriter::WriteResponse(std::string_view type, NamedEvents* events) {
  Write(
      type, [this](JsonWriter* json) { json->Key("response").Raw(Response()); }, events);
}

void ResponsesWriter::Write(std::string_view type, const std::function<void(JsonWriter*)>& members,
                            NamedEvents* events) {
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Field("type", type);
  members(&json);
  json.Field("sequence_number", sequence_number_++).EndObject();
  events->push_back({type, std::move(out)});
}

void ResponsesWriter::WritePart(const Item& item, JsonWriter* json) const {
  json->BeginObject();
  if (item.kind == ItemKind::kReasoning) {
    json->Field("type", "reasoning_text").Field("text", item.text).EndObject();
    return;
  }
  json->Field("type", "output_text").Key("annotations").BeginArray().EndArray();
  json->Key("logprobs").BeginArray();
  if (!item.logprobs.empty()) json->Raw(item.logprobs);
  json->EndArray().Field("text", item.text).EndObject();
}

void ResponsesWriter::WriteItem(const Item& item, JsonWriter* json) const {
  constexpr std::array<std::string_view, 5> kTypes = {"reasoning", "message", "function_call",
                                                      "custom_tool_call", "tool_search_call"};
  const bool has_begun = item.status != "in_progress";
  json->BeginObject().Field("type", kTypes[static_cast<size_t>(item.kind)]);
  json->Field("id", item.id).Field("status", item.status);
  switch (item.kind) {
    case ItemKind::kReasoning:
    case ItemKind::kMessage:
      if (item.kind == ItemKind::kMessage) {
        json->Field("role", "assistant");
        json->Field("phase", item.precedes_calls ? "commentary" : "final_answer");
      }
      json->Key("content").BeginArray();
      if (has_begun) WritePart(item, json);
      json->EndArray();
      if (item.kind == ItemKind::kReasoning) {
        json->Key("summary").BeginArray().EndArray();
        const std::string number = item.id.substr(item.id.rfind('_') + 1);
        json->Field("encrypted_content", format_.id + "-" + number);
      }
      break;
    case ItemKind::kFunction:
    case ItemKind::kCustom:
      json->Field("call_id", item.call_id).Field("name", item.name);
      if (!item.name_space.empty()) json->Field("namespace", item.name_space);
      json->Field(item.kind == ItemKind::kFunction ? "arguments" : "input", item.text);
      break;
    case ItemKind::kSearch:
      json->Field("call_id", item.call_id).Field("execution", "client");
      json->Key("arguments").Raw(ArgumentsObject(item.text));
      break;
  }
  json->EndObject();
}

void ResponsesWriter::WriteUsage(JsonWriter* json) const {
  json->BeginObject().Field("input_tokens", usage_.prompt_tokens);
  json->Key("input_tokens_details").BeginObject();
  json->Field("cached_tokens", usage_.cached_tokens);
  if (!format_.reference) json->Field("cache_write_tokens", usage_.cache_write_tokens);
  json->EndObject().Field("output_tokens", usage_.completion_tokens);
  json->Key("output_tokens_details").BeginObject();
  json->Field("reasoning_tokens", usage_.reasoning_tokens).EndObject();
  json->Field("total_tokens", usage_.prompt_tokens + usage_.completion_tokens);
  if (!format_.reference && format_.usage_extension) WriteUsageExtension(usage_, json);
  json->EndObject();
}

std::string ResponsesWriter::Response() const {
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Field("id", format_.id).Field("object", "response");
  json.Field("created_at", format_.created_s).Field("status", status_);
  json.Key("completed_at").Raw(completed_at_json_).Key("content_filters").Null();
  json.Key("error").Raw(error_json_).Key("incomplete_details").Raw(incomplete_json_);
  json.Field("model", format_.model).Key("output").BeginArray();
  for (const Item& item : items_) WriteItem(item, &json);
  json.EndArray().Key("usage");
  if (has_usage_) {
    WriteUsage(&json);
  } else {
    json.Null();
  }
  json.Raw(format_.echo_json).EndObject();
  return out;
}

}  // namespace deepinfer
