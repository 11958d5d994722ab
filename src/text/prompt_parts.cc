#include "text/prompt_parts.h"

#include <algorithm>
#include <array>
#include <utility>

#include "text/call_arguments.h"
#include "text/python_json.h"
#include "text/special_tokens.h"

namespace deepinfer {
namespace {

// {calls}, {invoke} and {parameter} stand for the tag names of the form, {tools} for the schemas.
constexpr std::string_view kToolsBlock =
    "\n\n## Tools\n\n"
    "You have access to a set of tools to help answer the user's question. You can invoke tools by "
    "writing a \"<｜DSML｜{calls}>\" block like the following:\n\n"
    "<｜DSML｜{calls}>\n"
    "<｜DSML｜{invoke} name=\"$TOOL_NAME\">\n"
    "<｜DSML｜{parameter} name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE"
    "</｜DSML｜{parameter}>\n"
    "...\n"
    "</｜DSML｜{invoke}>\n"
    "<｜DSML｜{invoke} name=\"$TOOL_NAME2\">\n"
    "...\n"
    "</｜DSML｜{invoke}>\n"
    "</｜DSML｜{calls}>\n\n"
    "String parameters should be specified as is and set `string=\"true\"`. For all other types "
    "(numbers, booleans, arrays, objects), pass the value in JSON format and set "
    "`string=\"false\"`.\n\n"
    "If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning "
    "inside <think>...</think> BEFORE any tool calls or final response.\n\n"
    "Otherwise, output directly after </think> with tool calls or final response.\n\n"
    "### Available Tool Schemas\n\n"
    "{tools}\n\n"
    "You MUST strictly follow the above defined tool name and parameter schemas to invoke tool "
    "calls.\n";

constexpr std::string_view kResponseSchemaBlock =
    "\n\n## Response Format:\n\n"
    "You MUST strictly adhere to the following schema to reply:\n";

constexpr std::string_view kToolUpdateBlock = "\n\n### Updated Tool Schemas\n\n";

void OpenTag(std::string_view name, SegmentBuilder* out) {
  out->Text("<");
  out->Special(kDsmlString);
  out->Text(name);
}

void CloseTag(std::string_view name, SegmentBuilder* out) {
  out->Text("</");
  out->Special(kDsmlString);
  out->Text(name);
  out->Text(">");
}

void AppendCall(const FormStyle& style, const ToolCall& call, SegmentBuilder* out) {
  OpenTag(style.invoke, out);
  out->Text(" name=\"");
  out->Text(call.name);
  out->Text("\">\n");
  const std::vector<CallParameter> parameters = SplitCallArguments(style.form, call.arguments);
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (i > 0) out->Text("\n");
    OpenTag(style.parameter, out);
    out->Text(" name=\"");
    out->Text(parameters[i].name);
    out->Text(parameters[i].is_string ? "\" string=\"true\">" : "\" string=\"false\">");
    out->Text(parameters[i].value);
    CloseTag(style.parameter, out);
  }
  if (!parameters.empty() || style.empty_line_without_parameters) out->Text("\n");
  CloseTag(style.invoke, out);
}

void AppendCalls(const FormStyle& style, const std::vector<ToolCall>& calls, SegmentBuilder* out) {
  OpenTag(style.calls, out);
  out->Text(">\n");
  for (const ToolCall& call : calls) {
    AppendCall(style, call, out);
    out->Text("\n");
  }
  CloseTag(style.calls, out);
}

std::string_view TaskToken(UserTask task) {
  switch (task) {
    case UserTask::kAction:
      return kActionString;
    case UserTask::kQuery:
      return kQueryString;
    case UserTask::kAuthority:
      return kAuthorityString;
    case UserTask::kDomain:
      return kDomainString;
    case UserTask::kTitle:
      return kTitleString;
    case UserTask::kReadUrl:
      return kReadUrlString;
    case UserTask::kNone:
      break;
  }
  return {};
}

UserTask TaskOf(const Turn& turn) {
  const auto* user = std::get_if<UserTurn>(&turn);
  return user == nullptr ? UserTask::kNone : user->task;
}

std::vector<Tool> WithoutDeferred(std::vector<Tool> tools) {
  std::erase_if(tools, [](const Tool& tool) { return tool.deferred; });
  return tools;
}

}  // namespace

const FormStyle kStyleV41 = {.form = PromptForm::kV41,
                             .calls = " calls",
                             .invoke = " invoke",
                             .parameter = " parameter",
                             .empty_line_without_parameters = true,
                             .image_text = {}};
const FormStyle kStyleV4 = {.form = PromptForm::kV4,
                            .calls = "tool_calls",
                            .invoke = "invoke",
                            .parameter = "parameter",
                            .empty_line_without_parameters = false,
                            .image_text = "[Unsupported Image]"};

void SegmentBuilder::Special(std::string_view token) {
  segments_.push_back({Segment::Kind::kSpecial, std::string(token)});
}

void SegmentBuilder::Text(std::string_view text) {
  if (text.empty()) return;
  if (segments_.empty() || segments_.back().kind != Segment::Kind::kText ||
      !segments_.back().ids.empty()) {
    segments_.push_back({Segment::Kind::kText, {}});
  }
  segments_.back().text.append(text);
}

void SegmentBuilder::Image(int32_t image_index) {
  segments_.push_back({Segment::Kind::kImage, {}, image_index});
}

void SegmentBuilder::Segments(const std::vector<Segment>& segments) {
  segments_.insert(segments_.end(), segments.begin(), segments.end());
}

void SegmentBuilder::ResumePoint() {
  if (segments_.empty()) return;
  Segment& last = segments_.back();
  last.resume_points.push_back(last.kind == Segment::Kind::kText ? last.text.size() : 0);
}

void SegmentBuilder::Format(std::string_view text) {
  constexpr std::array kFormatSpecials = {kDsmlString, kThinkBeginString, kThinkEndString};
  while (!text.empty()) {
    size_t first = std::string_view::npos;
    std::string_view token;
    for (std::string_view candidate : kFormatSpecials) {
      const size_t at = text.find(candidate);
      if (at < first) {
        first = at;
        token = candidate;
      }
    }
    if (token.empty()) break;
    Text(text.substr(0, first));
    Special(token);
    text.remove_prefix(first + token.size());
  }
  Text(text);
}

void AppendContentParts(const FormStyle& style, const std::vector<ContentPart>& parts,
                        SegmentBuilder* out) {
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) out->Text(kPartSeparator);
    if (!parts[i].is_image()) {
      out->Text(parts[i].text);
    } else if (style.image_text.empty()) {
      out->Image(parts[i].image_index);
    } else {
      out->Text(style.image_text);
    }
    if (parts[i].resume_behind) out->ResumePoint();
  }
}

void AppendUserTurn(const FormStyle& style, const UserTurn& turn, SegmentBuilder* out) {
  out->Special(kUserString);
  for (size_t i = 0; i < turn.parts.size(); ++i) {
    if (i > 0) out->Text(kPartSeparator);
    if (const auto* result = std::get_if<ToolResult>(&turn.parts[i])) {
      out->Text("<tool_result>");
      AppendContentParts(style, result->parts, out);
      out->Text("</tool_result>");
      if (result->resume_behind) out->ResumePoint();
    } else {
      AppendContentParts(style, {std::get<ContentPart>(turn.parts[i])}, out);
    }
  }
}

void AppendAssistantTurn(const FormStyle& style, const AssistantStyle& how,
                         const AssistantTurn& turn, SegmentBuilder* out) {
  if (how.with_header) out->Special(kAssistantString);
  if (turn.sampled) return out->Segments(*turn.sampled);
  if (how.with_header) {
    if (how.keep_reasoning) {
      out->Special(kThinkBeginString);
      out->Text(turn.reasoning);
    }
    const bool reasoning_stays_open = how.continued && how.keep_reasoning && turn.text.empty();
    if (!reasoning_stays_open) out->Special(kThinkEndString);
  }
  out->Text(turn.text);
  if (!turn.calls.empty()) {
    out->Text(kPartSeparator);
    AppendCalls(style, turn.calls, out);
  }
  if (!turn.unfinished) out->Special(kEosString);
}

void AppendToolLines(const std::vector<Tool>& tools, SegmentBuilder* out) {
  std::string line;
  for (const Tool& tool : tools) {
    line += "{\"name\": ";
    WriteJsonString(tool.name, &line);
    line += ", \"description\": ";
    WriteJsonString(tool.description, &line);
    line += ", \"parameters\": ";
    line += tool.parameters_json;
    line += '}';
    out->Text(line);
    if (tool.resume_behind) out->ResumePoint();
    line = '\n';
  }
}

void AppendToolsBlock(const FormStyle& style, const std::vector<Tool>& tools, SegmentBuilder* out) {
  std::string_view rest = kToolsBlock;
  while (true) {
    const size_t open = rest.find('{');
    if (open == std::string_view::npos) break;
    const size_t close = rest.find('}', open);
    out->Format(rest.substr(0, open));
    const std::string_view name = rest.substr(open + 1, close - open - 1);
    if (name == "calls") {
      out->Text(style.calls);
    } else if (name == "invoke") {
      out->Text(style.invoke);
    } else if (name == "parameter") {
      out->Text(style.parameter);
    } else {
      AppendToolLines(WithoutDeferred(tools), out);
    }
    rest.remove_prefix(close + 1);
  }
  out->Format(rest);
}

void AppendAddedTools(const std::vector<Tool>& tools, SegmentBuilder* out) {
  if (tools.empty()) return;
  out->Text(kToolUpdateBlock);
  AppendToolLines(tools, out);
}

void AppendResponseSchema(std::string_view schema_json, SegmentBuilder* out) {
  out->Text(kResponseSchemaBlock);
  out->Text(schema_json);
}

void AppendGenerationHeader(const FormStyle& style, const Conversation& conversation,
                            SegmentBuilder* out) {
  out->Special(kAssistantString);
  out->Special(conversation.thinking ? kThinkBeginString : kThinkEndString);
  if (conversation.tool_mode == ToolMode::kForced && !conversation.tools.empty()) {
    out->Text(kPartSeparator);
    OpenTag(style.calls, out);
    out->Text(">\n");
  }
}

void AppendTask(UserTask task, bool thinking, SegmentBuilder* out) {
  if (task == UserTask::kAction) {
    out->Special(kAssistantString);
    out->Special(thinking ? kThinkBeginString : kThinkEndString);
  }
  out->Special(TaskToken(task));
}

bool KeepsReasoning(const Conversation& conversation, const RenderOptions& options) {
  return conversation.thinking && (conversation.tools_in_effect() || options.keep_reasoning);
}

void AppendTurns(const FormStyle& style, const Conversation& conversation,
                 const RenderOptions& options, size_t first_turn, SegmentBuilder* out) {
  const std::vector<Turn>& turns = conversation.turns;
  const bool keep_reasoning = KeepsReasoning(conversation, options);
  for (size_t i = first_turn; i < turns.size(); ++i) {
    const bool is_last = i + 1 == turns.size();
    if (const auto* system = std::get_if<SystemTurn>(&turns[i])) {
      out->Special(kSystemString);
      AppendContentParts(style, system->parts, out);
      AppendAddedTools(system->added_tools, out);
    } else if (const auto* reminder = std::get_if<ReminderTurn>(&turns[i])) {
      out->Special(kLatestReminderString);
      out->Text(reminder->text);
    } else if (const auto* user = std::get_if<UserTurn>(&turns[i])) {
      AppendUserTurn(style, *user, out);
      if (user->task != UserTask::kNone) AppendTask(user->task, conversation.thinking, out);
    } else if (const auto* assistant = std::get_if<AssistantTurn>(&turns[i])) {
      const bool continued = is_last && assistant->unfinished;
      const AssistantStyle how = {
          .with_header = i == 0 || TaskOf(turns[i - 1]) == UserTask::kNone,
          .keep_reasoning = continued ? conversation.thinking : keep_reasoning,
          .continued = continued};
      AppendAssistantTurn(style, how, *assistant, out);
      if (assistant->resume_behind) out->ResumePoint();
    }
  }
  if (conversation.resume_behind_last_turn) out->ResumePoint();
  const bool ends_with_task = !turns.empty() && TaskOf(turns.back()) != UserTask::kNone;
  if (options.add_generation_header && !ends_with_task && !conversation.continues_last_turn()) {
    AppendGenerationHeader(style, conversation, out);
  }
}

}  // namespace deepinfer
