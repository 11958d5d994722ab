// What a Responses answer repeats of its request (api.md §9).
#include "server/responses_body.h"
#include "server/service_tier.h"
#include "text/python_json.h"

namespace deepinfer {
namespace {

namespace json = boost::json;

// The member; null when it is absent.
json::value MemberOf(const json::value& value, std::string_view key) {
  const json::object* object = value.if_object();
  const json::value* member =
      object == nullptr ? nullptr : object->if_contains({key.data(), key.size()});
  return member == nullptr ? json::value(nullptr) : *member;
}

json::value OrElse(json::value value, json::value otherwise) {
  return value.is_null() ? std::move(otherwise) : std::move(value);
}

json::value AsDouble(const json::value& value) {
  return value.is_number() ? json::value(value.to_number<double>()) : json::value(1.0);
}

// Functions show all their members; other tools those that were sent.
json::value ShownTool(const json::value& tool) {
  const json::value type = MemberOf(tool, "type");
  json::object shown = tool.is_object() ? tool.get_object() : json::object();
  if (type == "function") {
    shown = {{"type", "function"},
             {"name", MemberOf(tool, "name")},
             {"description", MemberOf(tool, "description")},
             {"parameters", MemberOf(tool, "parameters")},
             {"strict", MemberOf(tool, "strict")}};
  }
  if (type == "namespace") {
    json::array tools;
    if (const json::value members = MemberOf(tool, "tools"); members.is_array()) {
      for (const json::value& member : members.get_array()) tools.push_back(ShownTool(member));
    }
    shown["tools"] = std::move(tools);
  }
  return shown;
}

json::value ShownFormat(const json::value& format) {
  if (format.is_null()) return {{"type", "text"}};
  if (MemberOf(format, "type") != "json_schema") return {{"type", MemberOf(format, "type")}};
  return {{"type", "json_schema"},
          {"name", MemberOf(format, "name")},
          {"schema", MemberOf(format, "schema")},
          {"description", MemberOf(format, "description")},
          {"strict", MemberOf(format, "strict")}};
}

}  // namespace

std::string ResponsesEcho(const json::object& object) {
  const json::value body(object);
  const json::value text = MemberOf(body, "text");
  const json::value reasoning = MemberOf(body, "reasoning");
  const json::value parallel = MemberOf(body, "parallel_tool_calls");
  const json::value tier = MemberOf(body, "service_tier");
  json::array tools;
  if (const json::value given = MemberOf(body, "tools"); given.is_array()) {
    for (const json::value& tool : given.get_array()) tools.push_back(ShownTool(tool));
  }
  const json::object echo = {
      {"background", false},
      {"frequency_penalty", 0.0},
      {"instructions", MemberOf(body, "instructions")},
      {"max_output_tokens", MemberOf(body, "max_output_tokens")},
      {"max_tool_calls", nullptr},
      {"moderation", nullptr},
      {"parallel_tool_calls", parallel.is_bool() ? parallel : json::value(true)},
      {"presence_penalty", 0.0},
      {"previous_response_id", nullptr},
      {"prompt_cache_key", MemberOf(body, "prompt_cache_key")},
      {"prompt_cache_retention", MemberOf(body, "prompt_cache_retention")},
      {"reasoning",
       {{"effort", MemberOf(reasoning, "effort")}, {"summary", MemberOf(reasoning, "summary")}}},
      {"safety_identifier", MemberOf(body, "safety_identifier")},
      {"service_tier", TierUsed(tier.is_string() ? std::string_view(tier.as_string()) : "")},
      {"store", false},
      {"temperature", AsDouble(MemberOf(body, "temperature"))},
      {"text",
       {{"format", ShownFormat(MemberOf(text, "format"))},
        {"verbosity", MemberOf(text, "verbosity")}}},
      {"tool_choice", OrElse(MemberOf(body, "tool_choice"), "auto")},
      {"tools", std::move(tools)},
      {"top_logprobs", OrElse(MemberOf(body, "top_logprobs"), 0)},
      {"top_p", AsDouble(MemberOf(body, "top_p"))},
      {"truncation", "disabled"},
      {"user", MemberOf(body, "user")},
      {"metadata", json::object()}};
  const std::string whole = PythonJson(echo);
  return whole.substr(1, whole.size() - 2);
}

}  // namespace deepinfer
