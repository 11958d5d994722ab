// Input items of a Responses body (api.md §9).
#include <fmt/format.h>

#include "server/field_reader.h"
#include "server/responses_body.h"
#include "text/python_json.h"

namespace deepinfer {
namespace {

namespace json = boost::json;
using Kind = ResponsesItem::Kind;

ResponsesPart ReadPart(const json::value& value, const std::string& path, ReadState* state) {
  static const std::vector<std::string_view> kTypes = {"input_text", "output_text", "input_image",
                                                       "input_file"};
  static const std::vector<std::string_view> kDetails = {"low", "high", "original", "auto"};
  ObjectReader part(state, value, path);
  ResponsesPart result;
  switch (part.RequiredOneOf("type", kTypes)) {
    case 0:
    case 1:
      result.text = part.RequiredString("text");
      break;
    case 2:
      result.kind = ResponsesPart::Kind::kImage;
      result.image_url = part.String("image_url");
      result.file_id = part.String("file_id");
      if (auto detail = part.OneOf("detail", kDetails)) {
        result.detail = static_cast<ImageDetail>(*detail);
      }
      break;
    default:
      result.kind = ResponsesPart::Kind::kFile;
  }
  result.cache_breakpoint = ReadCacheBreakpoint(&part);
  return result;
}

// A string or an array of parts; null is neither.
void ReadParts(ObjectReader* item, std::string_view key, ReadState* state,
               std::vector<ResponsesPart>* parts) {
  const json::value* value = item->Require(key);
  if (value == nullptr) return;
  if (value->is_string()) {
    parts->emplace_back().text = value->get_string();
    return;
  }
  if (!value->is_array()) {
    item->WrongType(key, "a string or an array");
    return;
  }
  const json::array& array = value->get_array();
  for (size_t i = 0; i < array.size() && !state->error; ++i) {
    parts->push_back(ReadPart(array[i], IndexPath(item->PathOf(key), i), state));
  }
}

void ReadMessage(ObjectReader* item, ReadState* state, ResponsesItem* result) {
  static const std::vector<std::string_view> kRoles = {"user", "assistant", "system", "developer"};
  constexpr Kind kKinds[] = {Kind::kUser, Kind::kAssistant, Kind::kSystem, Kind::kDeveloper};
  result->kind = kKinds[item->RequiredOneOf("role", kRoles)];
  ReadParts(item, "content", state, &result->parts);
}

// Several texts of one item are joined like several items.
void ReadReasoning(ObjectReader* item, ReadState* state, ResponsesItem* result) {
  result->kind = Kind::kReasoning;
  item->String("encrypted_content");
  const json::array* content = item->Array("content");
  if (content == nullptr) return;
  for (size_t i = 0; i < content->size(); ++i) {
    ObjectReader part(state, (*content)[i], IndexPath(item->PathOf("content"), i));
    if (i > 0) result->text += '\n';
    result->text += part.RequiredString("text");
  }
}

void ReadFunctionCall(ObjectReader* item, PromptForm form, ResponsesItem* result) {
  result->kind = Kind::kCall;
  result->call_id = item->RequiredString("call_id");
  result->name = item->RequiredString("name");
  result->text = item->RequiredString("arguments");
  if (const auto name_space = item->String("namespace")) {
    result->name = JoinToolName(form, *name_space, result->name);
  }
}

void ReadCustomCall(ObjectReader* item, ResponsesItem* result) {
  result->kind = Kind::kCall;
  result->call_id = item->RequiredString("call_id");
  result->name = item->RequiredString("name");
  result->text = PythonJson(json::object{{"input", item->RequiredString("input")}});
}

void ReadSearchCall(ObjectReader* item, PromptForm form, ResponsesItem* result) {
  result->kind = Kind::kCall;
  result->call_id = item->RequiredString("call_id");
  result->name = "tool_search";
  const json::value* arguments = item->Require("arguments");
  if (arguments == nullptr) return;
  if (!arguments->is_object()) return item->WrongType("arguments", "an object");
  result->text = JsonForPrompt(form, *arguments);
}

ResponsesItem ReadItem(const json::value& value, const std::string& path, PromptForm form,
                       ReadState* state, ResponsesBody* body) {
  ResponsesItem result;
  ObjectReader item(state, value, path);
  if (!item.valid()) return result;
  const std::optional<std::string> given = item.String("type");
  if (!given && item.Find("role") == nullptr) {
    item.Fail("type", "missing_required_parameter",
              fmt::format("Missing required parameter: '{}'.", item.PathOf("type")));
    return result;
  }
  const std::string type = given.value_or("message");
  // Older prompts know no tool search.
  const bool searches = form == PromptForm::kV41;
  if (type == "message") {
    ReadMessage(&item, state, &result);
  } else if (type == "reasoning") {
    ReadReasoning(&item, state, &result);
  } else if (type == "function_call") {
    ReadFunctionCall(&item, form, &result);
  } else if (type == "custom_tool_call") {
    ReadCustomCall(&item, &result);
  } else if (type == "function_call_output" || type == "custom_tool_call_output") {
    result.kind = Kind::kOutput;
    const std::optional<std::string> call_id = item.String("call_id");
    result.has_call_id = call_id.has_value() || type != "function_call_output";
    result.call_id =
        result.has_call_id && !call_id ? item.RequiredString("call_id") : call_id.value_or("");
    ReadParts(&item, "output", state, &result.parts);
  } else if (type == "tool_search_call" && searches) {
    ReadSearchCall(&item, form, &result);
  } else if (type == "tool_search_output" && searches) {
    result.kind = Kind::kOutput;
    result.call_id = item.RequiredString("call_id");
    if (const json::value* tools = item.Require("tools")) {
      ReadFoundTools(*tools, item.PathOf("tools"), form, state, body, &result);
    }
  } else if (type == "web_search_call") {
    result.kind = Kind::kInterruption;
  }
  return result;
}

}  // namespace

void ReadResponsesInput(ObjectReader* body, PromptForm form, ReadState* state,
                        ResponsesBody* result) {
  const json::value* input = body->Find("input");
  if (input == nullptr) return;
  result->has_input = true;
  if (input->is_string()) {
    ResponsesItem& item = result->items.emplace_back();
    item.kind = Kind::kUser;
    item.parts.emplace_back().text = input->get_string();
    return;
  }
  if (!input->is_array()) {
    body->WrongType("input", "a string or an array");
    return;
  }
  result->input_is_list = true;
  const json::array& items = input->get_array();
  for (size_t i = 0; i < items.size() && !state->error; ++i) {
    result->items.push_back(ReadItem(items[i], IndexPath("input", i), form, state, result));
    for (const ResponsesPart& part : result->items.back().parts) {
      result->common.labels.num_cache_breakpoints += part.cache_breakpoint;
    }
  }
}

}  // namespace deepinfer
