// The dialect-free form of a request: what the prompt renderer reads (encoding.md §4). JSON inside
// it (schemas, arguments) is text, so no JSON library is needed to hold or render it.
// Thread rule: values. Owner: the request that built it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "text/segment.h"

namespace deepinfer {

// Which prompt form the loaded model was trained on (encoding.md §6, §11).
enum class PromptForm : unsigned char { kV4, kV41 };

enum class ToolMode : unsigned char {
  kNone,    // no tools in effect: neither rendered nor parsed
  kAuto,    // the model decides
  kForced,  // the prompt opens the calls block
};

// Hidden tasks of the message-level API; none of the HTTP dialects sets one.
enum class UserTask : unsigned char {
  kNone,
  kAction,
  kQuery,
  kAuthority,
  kDomain,
  kTitle,
  kReadUrl
};

// Text, or an image given by its index in the request's image list.
struct ContentPart {
  std::string text;
  int32_t image_index = -1;  // >= 0: an image, text is empty
  // A client marked this place: later prompts may part from this one behind it (api.md §7).
  bool resume_behind = false;

  bool is_image() const { return image_index >= 0; }
  static ContentPart Text(std::string text) { return {std::move(text)}; }
  static ContentPart Image(int32_t index) { return {{}, index}; }
};

struct ToolResult {
  std::string call_id;
  std::vector<ContentPart> parts;
  bool resume_behind = false;
};

// One callable function. The JSON fields are texts written by JsonForPrompt (python_json.h).
struct Tool {
  std::string name;  // with its namespace: "ns::name"
  std::string description;
  std::string parameters_json = "{}";
  // Left out of the list in front until a system turn adds it. Never set in V4 conversations.
  bool deferred = false;
  bool resume_behind = false;
};

struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // as the client sent it; JSON or not
};

struct SystemTurn {
  std::vector<ContentPart> parts;
  std::vector<Tool> added_tools{};  // become visible here (V4.1 only)
};

using UserPart = std::variant<ContentPart, ToolResult>;

struct UserTurn {
  std::vector<UserPart> parts;
  UserTask task = UserTask::kNone;
};

struct ReminderTurn {
  std::string text;
};

struct AssistantTurn {
  std::string reasoning;
  std::string text;
  std::vector<ToolCall> calls;
  // The last turn: rendered open, the model continues it. An earlier turn: no end token.
  bool unfinished = false;
  bool resume_behind = false;
  // The turn as it was sampled, from behind its header to its end token: rendered in place of the
  // fields above (text/sampled_turn.h).
  std::optional<std::vector<Segment>> sampled{};
};

using Turn = std::variant<SystemTurn, UserTurn, ReminderTurn, AssistantTurn>;

// Named steps of reasoning effort. V4.1 renders the number, V4 one of three paragraphs.
inline constexpr int32_t kEffortLow = 50;
inline constexpr int32_t kEffortHigh = 75;
inline constexpr int32_t kEffortMax = 100;

// The schema that asks for any JSON object; V4 has its own sentence for it.
inline constexpr std::string_view kJsonObjectSchema = "{\"type\": \"json_object\"}";

struct Conversation {
  PromptForm form = PromptForm::kV41;
  bool thinking = true;
  int32_t effort = kEffortHigh;  // 1..100, read only when thinking
  std::vector<Turn> turns;
  std::vector<Tool> tools;  // those that may be called; empty when tool_mode is kNone
  ToolMode tool_mode = ToolMode::kNone;
  std::optional<std::string> response_schema_json;  // written by JsonForPrompt
  bool resume_behind_last_turn = false;

  // True if the model continues the last turn instead of starting a new one.
  bool continues_last_turn() const;
  bool tools_in_effect() const { return tool_mode != ToolMode::kNone && !tools.empty(); }
};

// Completes the tools that system turns add, given by name alone, from the tools that may be
// called; others are dropped, and with them system turns that had nothing else. Before
// NormalizeTurns.
void ResolveAddedTools(Conversation* conversation);

// Brings the turns into the order the prompt form knows (encoding.md §4 rules 1 and 2): joins
// neighbouring user turns, puts the tool results of each into the order of the calls of the
// assistant turn before it, keeps the first of several reminders in a row (V4.1) or moves all
// system turns to the front (V4). Every dialect calls it once, after its last turn.
void NormalizeTurns(Conversation* conversation);

}  // namespace deepinfer
