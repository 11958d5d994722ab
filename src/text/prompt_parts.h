// Pieces both prompt forms are made of (encoding.md §6, §7, §11). Internal to the renderer.
// Thread rule: one builder per render call.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/conversation.h"
#include "text/renderer.h"

namespace deepinfer {

// Collects segments and joins neighbouring text.
class SegmentBuilder {
 public:
  void Special(std::string_view token);
  void Text(std::string_view text);
  void Image(int32_t image_index);

  // Pieces that were rendered earlier.
  void Segments(const std::vector<Segment>& segments);

  // Notes a place behind what was written so far.
  void ResumePoint();

  // Text of the format itself, in which the marker and the think strings are special tokens.
  // Never called with text that comes from a request.
  void Format(std::string_view text);

  std::vector<Segment> Take() { return std::move(segments_); }

 private:
  std::vector<Segment> segments_;
};

// What differs between the two forms inside tool markup and content.
struct FormStyle {
  PromptForm form;
  std::string_view calls;  // what stands behind the marker in <[M]...>
  std::string_view invoke;
  std::string_view parameter;
  bool empty_line_without_parameters;
  std::string_view image_text;  // "" = image placeholders
};

// The text between two parts of a turn, and between a turn's text and its calls block.
inline constexpr std::string_view kPartSeparator = "\n\n";

void AppendContentParts(const FormStyle& style, const std::vector<ContentPart>& parts,
                        SegmentBuilder* out);

// <｜User｜> and the parts of the turn; tool results in their tags.
void AppendUserTurn(const FormStyle& style, const UserTurn& turn, SegmentBuilder* out);

// Everything between <｜Assistant｜> and the generated text: the reasoning part (or its closing
// token alone), the text and the calls, and the end token unless the turn is unfinished.
struct AssistantStyle {
  bool with_header = true;  // false behind a task token
  bool keep_reasoning = false;
  bool continued = false;  // the last turn of a continuation
};
void AppendAssistantTurn(const FormStyle& style, const AssistantStyle& how,
                         const AssistantTurn& turn, SegmentBuilder* out);

void AppendToolsBlock(const FormStyle& style, const std::vector<Tool>& tools, SegmentBuilder* out);

// One JSON line per tool, joined with NL.
void AppendToolLines(const std::vector<Tool>& tools, SegmentBuilder* out);

// The block that names tools which become visible at this place; nothing for none.
void AppendAddedTools(const std::vector<Tool>& tools, SegmentBuilder* out);

// The block that states the schema of the answer.
void AppendResponseSchema(std::string_view schema_json, SegmentBuilder* out);

// <｜Assistant｜>, the think token and, for forced calls, the opener of the calls block.
void AppendGenerationHeader(const FormStyle& style, const Conversation& conversation,
                            SegmentBuilder* out);

// What ends the prompt behind a user turn with a hidden task.
void AppendTask(UserTask task, bool thinking, SegmentBuilder* out);

// Reasoning of finished turns is rendered with tools, dropped without (encoding.md §6).
bool KeepsReasoning(const Conversation& conversation, const RenderOptions& options);

// The turns from `first_turn` on and what follows them: a header, a task token, or nothing when the
// last turn is continued.
void AppendTurns(const FormStyle& style, const Conversation& conversation,
                 const RenderOptions& options, size_t first_turn, SegmentBuilder* out);

// Each form's head: everything behind the begin token and before the first turn that is not the
// leading system turn. Returns the index of that turn.
size_t AppendHeadV41(const Conversation& conversation, SegmentBuilder* out);
size_t AppendHeadV4(const Conversation& conversation, SegmentBuilder* out);

extern const FormStyle kStyleV41;
extern const FormStyle kStyleV4;

}  // namespace deepinfer
