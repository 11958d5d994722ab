// Tools of a Responses body: functions, custom tools, namespaces, tool search (api.md §9).
#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "server/apply_patch_tool.h"
#include "server/chat_convert.h"
#include "server/field_reader.h"
#include "server/responses_body.h"
#include "text/python_json.h"

namespace deepinfer {
namespace {

namespace json = boost::json;

constexpr std::string_view kSearchName = "tool_search";

const json::value& ApplyPatchParameters() {
  static const json::value kParameters = {
      {"type", "object"},
      {"additionalProperties", false},
      {"properties",
       {{"input", {{"type", "string"}, {"description", std::string(kApplyPatchInput)}}}}},
      {"required", {"input"}}};
  return kParameters;
}

// Older prompts have no empty line in front of the first example.
std::string ApplyPatchDescription(PromptForm form) {
  std::string text(kApplyPatchDescription);
  if (form == PromptForm::kV4) text.erase(text.find("\n\n*** Begin Patch"), 1);
  return text;
}

const json::value& CustomParameters() {
  static const json::value kParameters = {{"type", "object"},
                                          {"properties", {{"input", {{"type", "string"}}}}},
                                          {"required", {"input"}}};
  return kParameters;
}

class ToolReader {
 public:
  ToolReader(PromptForm form, ReadState* state, ResponsesBody* body)
      : form_(form), state_(state), body_(body) {}

  // What `tools` of the body or of a search result lists. Found tools are deferred; their names go
  // to `found`, the JSON of each to `found_json`.
  void ReadList(const json::array& list, const std::string& path, std::vector<std::string>* found,
                json::array* found_json) {
    found_ = found;
    found_json_ = found_json;
    for (size_t i = 0; i < list.size() && !state_->error; ++i) {
      ReadOne(list[i], IndexPath(path, i));
    }
  }

 private:
  void ReadOne(const json::value& value, const std::string& path) {
    ObjectReader tool(state_, value, path);
    const std::string type = tool.RequiredString("type");
    if (type == "function") {
      ReadFunction(&tool, {}, {});
    } else if (type == "custom") {
      ReadCustom(&tool);
    } else if (type == "namespace") {
      ReadNamespace(&tool, path);
    } else if (type == kSearchName && form_ == PromptForm::kV41 &&
               tool.String("execution") == "client") {
      ReadSearch(&tool);
    } else if (type != kSearchName) {
      body_->has_server_tools = body_->has_server_tools || type.starts_with("web_search");
    }
  }

  BodyTool& Add(ObjectReader* tool, std::string name) {
    BodyTool& added = body_->common.tools.emplace_back();
    added.name = std::move(name);
    added.name_path = tool->PathOf("name");
    added.parameters_path = tool->PathOf("parameters");
    added.deferred = found_ != nullptr;
    return added;
  }

  void NoteFound(const BodyTool& tool, json::object shown) {
    if (found_ == nullptr) return;
    found_->push_back(tool.prompt_name.empty() ? tool.name : tool.prompt_name);
    found_json_->push_back(std::move(shown));
  }

  void ReadFunction(ObjectReader* tool, const std::string& name_space,
                    const std::string& group_description) {
    BodyTool& added = Add(tool, tool->RequiredString("name"));
    added.description = tool->String("description");
    added.parameters = tool->Find("parameters");
    added.strict = tool->Bool("strict");
    json::object shown = {{"type", "function"},
                          {"name", added.name},
                          {"description", nullptr},
                          {"parameters", nullptr},
                          {"strict", nullptr}};
    if (added.description) shown["description"] = *added.description;
    if (added.parameters != nullptr) shown["parameters"] = *added.parameters;
    if (added.strict) shown["strict"] = *added.strict;
    if (!name_space.empty()) {
      added.prompt_name = FreeName(JoinToolName(form_, name_space, added.name));
      if (!group_description.empty() && form_ == PromptForm::kV41) {
        added.description = group_description + "\n" + added.description.value_or("");
      }
      body_->tools[added.prompt_name] = {ResponsesToolKind::kFunction, added.name, name_space,
                                         found_ == nullptr};
      shown["namespace"] = {{"name", name_space}, {"description", group_description}};
    }
    NoteFound(added, std::move(shown));
  }

  void ReadCustom(ObjectReader* tool) {
    BodyTool& added = Add(tool, tool->RequiredString("name"));
    const bool is_apply_patch = added.name == kApplyPatchName;
    if (!is_apply_patch && !body_->takes_any_custom_tool) {
      Fault(tool->path(), fmt::format("Unsupported custom tool: '{}'. Only '{}' is supported.",
                                      added.name, kApplyPatchName));
    }
    added.description =
        is_apply_patch ? std::optional(ApplyPatchDescription(form_)) : tool->String("description");
    added.parameters = is_apply_patch ? &ApplyPatchParameters() : &CustomParameters();
    body_->tools[added.name] = {ResponsesToolKind::kCustom, added.name, {}, found_ == nullptr};
    NoteFound(added, {{"type", "custom"}, {"name", added.name}});
  }

  void ReadSearch(ObjectReader* tool) {
    BodyTool& added = Add(tool, std::string(kSearchName));
    added.description = tool->String("description");
    added.parameters = tool->Find("parameters");
    body_->tools[added.name] = {ResponsesToolKind::kSearch, added.name, {}, found_ == nullptr};
    NoteFound(added, {{"type", kSearchName}});
  }

  void ReadNamespace(ObjectReader* group, const std::string& path) {
    static const std::vector<std::string_view> kTypes = {"function", "custom"};
    const std::string name_space = group->RequiredString("name");
    const std::string description = group->String("description").value_or("");
    const json::value* list = group->Require("tools");
    if (list == nullptr) return;
    if (!list->is_array()) return group->WrongType("tools", "an array");
    CheckGroupName(name_space, group->PathOf("name"));
    std::unordered_set<std::string> names;
    const std::string list_path = group->PathOf("tools");
    for (size_t i = 0; i < list->get_array().size() && !state_->error; ++i) {
      ObjectReader tool(state_, list->get_array()[i], IndexPath(list_path, i));
      if (tool.RequiredOneOf("type", kTypes) == 1) {
        Fault(path, fmt::format("Currently custom tools are not allowed inside a namespace. Found "
                                "custom tool '{}' in {}.",
                                tool.RequiredString("name"), tool.path()));
        continue;
      }
      ReadFunction(&tool, name_space, description);
      if (!names.insert(body_->common.tools.back().name).second) {
        Fault(path, "Tool names within a namespace must be unique.");
      }
    }
  }

  void CheckGroupName(const std::string& name, const std::string& path) {
    if (Refusal refusal = CheckToolName(name, path)) {
      if (!body_->common.tool_fault) body_->common.tool_fault = std::move(*refusal);
    }
  }

  void Fault(const std::string& path, std::string message) {
    if (!body_->common.tool_fault) body_->common.tool_fault = Refuse(path, std::move(message));
  }

  // Two groups may give the same name: the later one gets a number.
  std::string FreeName(const std::string& name) const {
    const auto taken = [&](const std::string& candidate) {
      return std::any_of(
          body_->common.tools.begin(), body_->common.tools.end() - 1, [&](const BodyTool& tool) {
            return (tool.prompt_name.empty() ? tool.name : tool.prompt_name) == candidate;
          });
    };
    std::string candidate = name;
    for (int number = 1; taken(candidate); ++number) {
      candidate = name + "_" + std::to_string(number);
    }
    return candidate;
  }

  const PromptForm form_;
  ReadState* const state_;
  ResponsesBody* const body_;
  std::vector<std::string>* found_ = nullptr;
  json::array* found_json_ = nullptr;
};

void ReadChoice(ObjectReader* body, ReadState* state, ChatBody* common) {
  using Mode = BodyToolChoice::Mode;
  const json::value* value = body->Find("tool_choice");
  if (value == nullptr) return;
  BodyToolChoice& choice = common->tool_choice.emplace();
  if (value->is_string()) {
    static const std::vector<std::string_view> kModes = {"none", "auto", "required"};
    choice.mode = static_cast<Mode>(body->RequiredOneOf("tool_choice", kModes));
    return;
  }
  static const std::vector<std::string_view> kTypes = {"function", "custom", "web_search",
                                                       "web_search_2025_08_26"};
  ObjectReader object(state, *value, "tool_choice");
  if (object.RequiredOneOf("type", kTypes) > 1) return;
  choice.mode = Mode::kNamed;
  choice.name = object.RequiredString("name");
}

}  // namespace

std::string JoinToolName(PromptForm form, std::string_view name_space, std::string_view name) {
  return fmt::format("{}{}{}", name_space, form == PromptForm::kV4 ? "__" : "::", name);
}

void ReadResponsesTools(ObjectReader* body, PromptForm form, ReadState* state,
                        ResponsesBody* result) {
  if (const json::array* tools = body->Array("tools")) {
    ToolReader(form, state, result).ReadList(*tools, "tools", nullptr, nullptr);
  }
  ReadChoice(body, state, &result->common);
}

void ReadFoundTools(const json::value& tools, const std::string& path, PromptForm form,
                    ReadState* state, ResponsesBody* result, ResponsesItem* item) {
  if (!tools.is_array()) {
    state->Fail(path, "invalid_type",
                fmt::format("Invalid type for '{}': expected an array.", path));
    return;
  }
  json::array shown;
  ToolReader(form, state, result).ReadList(tools.get_array(), path, &item->added_tools, &shown);
  item->parts.emplace_back().text = CompactJson(shown);
}

}  // namespace deepinfer
