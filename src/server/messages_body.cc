#include "server/messages_body.h"

#include <array>
#include <limits>

#include "server/field_reader.h"

namespace deepinfer {
namespace {

namespace json = boost::json;

constexpr int64_t kMaxUint32 = std::numeric_limits<uint32_t>::max();
constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr std::string_view kCustomTool = "custom";
constexpr std::string_view kWebSearchTool = "web_search";

constexpr std::array<std::string_view, 6> kIgnoredFields = {
    "service_tier", "container", "mcp_servers", "context_management", "betas", "inference_geo"};

// Tools with a type of their own run on the side of the service.
bool IsServerTool(const std::optional<std::string>& type, const ChatRequestOptions& options) {
  return type && !(options.messages_extensions && *type == kCustomTool);
}

bool IsWebSearch(std::string_view type) {
  return type == kWebSearchTool || type.starts_with(std::string(kWebSearchTool) + "_");
}

void ReadServerTool(ObjectReader* tool, const std::string& type, size_t index,
                    const ChatRequestOptions& options, MessagesBody* result) {
  // The official rules drop web search alone.
  const bool dropped =
      options.drop_server_tools && (options.messages_extensions || IsWebSearch(type));
  if (!dropped) result->server_tools.push_back(index);
  const json::value* name = tool->Find("name");
  if (name != nullptr && name->is_string()) {
    result->server_tool_names.emplace_back(name->get_string());
  }
}

void ReadTools(ObjectReader* body, const ChatRequestOptions& options, ReadState* state,
               MessagesBody* result) {
  static const json::value kNoSchema;
  const json::array* array = body->Array("tools");
  if (array == nullptr) return;
  result->num_tools = array->size();
  for (size_t i = 0; i < array->size() && !state->error; ++i) {
    ObjectReader tool(state, (*array)[i], IndexPath("tools", i));
    const std::optional<std::string> type = tool.String("type");
    if (IsServerTool(type, options)) {
      ReadServerTool(&tool, *type, i, options, result);
      ReadCacheControl(&tool, &result->cache_marks);
    } else {
      BodyTool& client = result->common.tools.emplace_back();
      client.name = tool.RequiredString("name");
      client.name_path = tool.PathOf("name");
      client.description = tool.String("description");
      client.parameters = tool.Find("input_schema");
      if (client.parameters == nullptr) client.parameters = &kNoSchema;
      client.parameters_path = tool.PathOf("input_schema");
      client.deferred = tool.Bool("defer_loading").value_or(false);
      client.resume_behind = ReadCacheControl(&tool, &result->cache_marks);
    }
  }
}

void ReadToolChoice(ObjectReader* body, const ChatRequestOptions& options, MessagesBody* result) {
  using Mode = BodyToolChoice::Mode;
  static const std::vector<std::string_view> kTypes = {"auto", "any", "tool", "none"};
  constexpr Mode kModes[] = {Mode::kAuto, Mode::kAny, Mode::kNamed, Mode::kNone};
  auto choice = body->Object("tool_choice");
  if (!choice) return;
  BodyToolChoice& read = result->common.tool_choice.emplace();
  read.mode = kModes[choice->RequiredOneOf("type", kTypes)];
  if (read.mode == Mode::kNamed) read.name = choice->RequiredString("name");
  if (read.mode == Mode::kAny && !options.messages_any_forces) read.mode = Mode::kAuto;
  if (const auto disabled = choice->Bool("disable_parallel_tool_use")) {
    result->common.parallel_tool_calls = !*disabled;
  }
  // A tool that was dropped cannot be asked for.
  for (const std::string& dropped : result->server_tool_names) {
    if (read.mode == Mode::kNamed && read.name == dropped) read.mode = Mode::kAuto;
  }
}

void ReadOutputConfig(ObjectReader* body, const ChatRequestOptions& options, ReadState* state,
                      ChatBody* common) {
  static const std::vector<std::string_view> kTypes = {"json_schema"};
  auto config = body->Object("output_config");
  if (!config) return;
  common->effort = ReadEffort(&*config, "effort");
  const json::value* value = config->Find("format");
  if (value == nullptr || !options.messages_extensions) return;
  ObjectReader format(state, *value, config->PathOf("format"));
  format.RequiredOneOf("type", kTypes);
  BodyResponseFormat& read = common->response_format.emplace();
  read.kind = ResponseFormat::kJsonSchema;
  read.shown = false;  // the official prompt does not state it
  read.schema = format.Require("schema");
}

void ReadStopSequences(ObjectReader* body, ChatBody* common) {
  common->stop_is_array = true;
  const json::array* array = body->Array("stop_sequences");
  if (array == nullptr) return;
  for (const json::value& element : *array) {
    if (!element.is_string()) {
      body->WrongType("stop_sequences", "an array of strings");
      return;
    }
    common->stop.emplace_back(element.get_string());
  }
}

}  // namespace

MessagesBody ReadMessagesBody(const json::value& root, const ChatRequestOptions& options,
                              ReadState* state) {
  MessagesBody result;
  ChatBody& common = result.common;
  ObjectReader body(state, root, "");
  if (!body.valid()) return result;
  common.model = body.RequiredString("model");
  common.clips_max_tokens = true;
  common.max_tokens = body.Integer("max_tokens", 0, kMaxUint32);
  result.has_system = body.Find("system") != nullptr;
  result.system = ReadMessagesSystem(&body, state, &result.cache_marks);
  result.messages = ReadMessagesList(&body, options, state, &result.cache_marks);
  common.thinking = ReadThinkingType(&body);
  ReadOutputConfig(&body, options, state, &common);
  ReadTools(&body, options, state, &result);
  ReadToolChoice(&body, options, &result);
  ReadStopSequences(&body, &common);
  common.stream = body.Bool("stream");
  common.temperature = body.Number("temperature");
  common.top_p = body.Number("top_p");
  common.top_k = body.Integer("top_k", -1, kMaxInt32);
  if (auto metadata = body.Object("metadata")) {
    common.labels.user_id = metadata->String("user_id").value_or("");
  }
  result.marks_end = ReadCacheControl(&body, &result.cache_marks);
  if (options.test_hooks) ReadTestHooks(&body, &common.test_hooks);
  for (std::string_view key : kIgnoredFields) {
    if (body.Find(key) != nullptr) common.ignored_fields.emplace_back(key);
  }
  CheckUnknownFields(&body, options, &common);
  return result;
}

}  // namespace deepinfer
