#include "unit/text/message_list.h"

#include <map>
#include <string_view>

#include "text/python_json.h"

namespace deepinfer::testing {
namespace {

namespace json = boost::json;

std::string TextOf(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(key);
  return value != nullptr && value->is_string() ? std::string(value->get_string()) : "";
}

std::optional<int32_t> EffortOf(const json::object& options) {
  const json::value* effort = options.if_contains("reasoning_effort");
  if (effort == nullptr) return kEffortHigh;
  if (effort->is_int64()) {
    const int64_t number = effort->get_int64();
    if (number < 1 || number > 100) return std::nullopt;
    return static_cast<int32_t>(number);
  }
  static const std::map<std::string, int32_t> kNames = {
      {"low", kEffortLow}, {"high", kEffortHigh}, {"xhigh", kEffortHigh}, {"max", kEffortMax}};
  const auto found = kNames.find(TextOf(options, "reasoning_effort"));
  if (found == kNames.end()) return std::nullopt;
  return found->second;
}

std::optional<UserTask> TaskOf(const json::object& message) {
  if (!message.contains("task")) return UserTask::kNone;
  static const std::map<std::string, UserTask> kTasks = {
      {"action", UserTask::kAction},       {"query", UserTask::kQuery},
      {"authority", UserTask::kAuthority}, {"domain", UserTask::kDomain},
      {"title", UserTask::kTitle},         {"read_url", UserTask::kReadUrl}};
  const auto found = kTasks.find(TextOf(message, "task"));
  if (found == kTasks.end()) return std::nullopt;
  return found->second;
}

class Reader {
 public:
  explicit Reader(MessageList* list) : list_(list) {}

  bool ReadMessages(const json::array& messages) {
    for (const json::value& message : messages) {
      if (!ReadMessage(message.as_object())) return false;
    }
    return true;
  }

 private:
  bool ReadMessage(const json::object& message) {
    const std::string role = TextOf(message, "role");
    std::vector<Turn>& turns = list_->conversation.turns;
    if (role == "system") {
      if (turns.empty()) ReadHead(message);
      turns.emplace_back(SystemTurn{{ContentPart::Text(TextOf(message, "content"))}});
    } else if (role == "user") {
      const std::optional<UserTask> task = TaskOf(message);
      UserTurn turn;
      if (!task || !ReadUserParts(message, &turn)) return false;
      turn.task = *task;
      turns.emplace_back(std::move(turn));
    } else if (role == "tool") {
      UserTurn turn;
      ToolResult result{TextOf(message, "tool_call_id"), {}};
      if (!ReadParts(message.at("content"), false, &result.parts)) return false;
      turn.parts.emplace_back(std::move(result));
      turns.emplace_back(std::move(turn));
    } else if (role == "latest_reminder") {
      turns.emplace_back(ReminderTurn{TextOf(message, "content")});
    } else if (role == "assistant") {
      turns.emplace_back(ReadAssistant(message));
    } else {
      return false;
    }
    return true;
  }

  void ReadHead(const json::object& message) {
    Conversation& conversation = list_->conversation;
    if (const json::value* tools = message.if_contains("tools")) {
      conversation.tool_mode = ToolMode::kAuto;
      for (const json::value& tool : tools->as_array()) {
        const json::object& function = tool.at("function").as_object();
        conversation.tools.push_back({TextOf(function, "name"), TextOf(function, "description"),
                                      PythonJson(function.at("parameters"))});
      }
    }
    if (const json::value* format = message.if_contains("response_format")) {
      conversation.response_schema_json = PythonJson(*format);
    }
  }

  static AssistantTurn ReadAssistant(const json::object& message) {
    AssistantTurn turn;
    turn.text = TextOf(message, "content");
    turn.reasoning = TextOf(message, "reasoning_content");
    turn.unfinished = message.contains("wo_eos");
    if (const json::value* calls = message.if_contains("tool_calls")) {
      for (const json::value& call : calls->as_array()) {
        const json::object& function = call.at("function").as_object();
        const json::value& arguments = function.at("arguments");
        turn.calls.push_back(
            {TextOf(call.as_object(), "id"), TextOf(function, "name"),
             arguments.is_string() ? std::string(arguments.get_string()) : PythonJson(arguments)});
      }
    }
    return turn;
  }

  bool ReadUserParts(const json::object& message, UserTurn* turn) {
    const json::value& content = message.at("content");
    if (!content.is_array()) {
      turn->parts.emplace_back(ContentPart::Text(TextOf(message, "content")));
      return true;
    }
    for (const json::value& block : content.get_array()) {
      if (TextOf(block.as_object(), "type") == "tool_result") {
        ToolResult result{TextOf(block.as_object(), "tool_use_id"), {}};
        if (!ReadParts(block.at("content"), false, &result.parts)) return false;
        turn->parts.emplace_back(std::move(result));
        continue;
      }
      std::vector<ContentPart> parts;
      if (!ReadParts(json::array{block}, true, &parts)) return false;
      for (ContentPart& part : parts) turn->parts.emplace_back(std::move(part));
    }
    return true;
  }

  // Blocks of unknown types leave a note in user text and nothing in tool results.
  bool ReadParts(const json::value& content, bool note_unknown, std::vector<ContentPart>* parts) {
    if (content.is_string()) {
      parts->push_back(ContentPart::Text(std::string(content.get_string())));
      return true;
    }
    for (const json::value& value : content.as_array()) {
      const json::object& block = value.as_object();
      const std::string type = TextOf(block, "type");
      if (type == "text") {
        parts->push_back(ContentPart::Text(TextOf(block, "text")));
      } else if (type == "image_url" || type == "image") {
        if (!ReadImage(block, parts)) return false;
      } else if (note_unknown) {
        parts->push_back(ContentPart::Text("[Unsupported " + type + "]"));
      }
    }
    return true;
  }

  bool ReadImage(const json::object& block, std::vector<ContentPart>* parts) {
    json::object image = {{"type", "image"}};
    if (const json::value* source = block.if_contains("source")) {
      image["source"] = *source;
    } else {
      const json::value& url = block.at("image_url");
      image["url"] = url.is_object() ? url.at("url") : url;
      if (image["url"].as_string().empty()) return false;
    }
    parts->push_back(ContentPart::Image(static_cast<int32_t>(list_->images.size())));
    list_->images.emplace_back(std::move(image));
    return true;
  }

  MessageList* list_;
};

}  // namespace

std::optional<MessageList> ReadMessageList(const json::object& test_case) {
  const json::object& options = test_case.at("options").as_object();
  MessageList list;
  list.conversation.thinking = test_case.at("thinking_mode").as_string() == "thinking";
  const std::optional<int32_t> effort = EffortOf(options);
  if (!effort) return std::nullopt;
  list.conversation.effort = *effort;
  if (const json::value* drop = options.if_contains("drop_thinking")) {
    list.options.keep_reasoning = !drop->as_bool();
  }
  if (const json::value* begin = options.if_contains("add_default_bos_token")) {
    list.options.add_begin_token = begin->as_bool();
  }
  Reader reader(&list);
  if (const json::value* context = options.if_contains("context")) {
    if (!reader.ReadMessages(context->as_array())) return std::nullopt;
    list.options.first_turn = list.conversation.turns.size();
  }
  if (!reader.ReadMessages(test_case.at("messages").as_array())) return std::nullopt;
  NormalizeTurns(&list.conversation);
  return list;
}

}  // namespace deepinfer::testing
