#include "text/renderer.h"

#include <fmt/format.h>

#include "text/prompt_parts.h"
#include "text/special_tokens.h"

namespace deepinfer {

size_t AppendHeadV41(const Conversation& conversation, SegmentBuilder* out) {
  const SystemTurn* system =
      conversation.turns.empty() ? nullptr : std::get_if<SystemTurn>(&conversation.turns.front());
  const bool has_tools = conversation.tools_in_effect();
  const bool has_schema = conversation.response_schema_json.has_value();
  const bool has_tail = has_tools || has_schema;
  if (!conversation.thinking && system == nullptr && !has_tail) return 0;
  // A conversation without a single turn has nothing that could carry the effort line.
  if (conversation.turns.empty() && !has_tail) return 0;

  out->Special(kSystemString);
  if (conversation.thinking) {
    out->Text(
        fmt::format("Reasoning Effort: {} (range 1-100, the higher the value, the more "
                    "thorough the reasoning)\n\n",
                    conversation.effort));
  }
  if (system != nullptr) AppendContentParts(kStyleV41, system->parts, out);
  if (has_tools) AppendToolsBlock(kStyleV41, conversation.tools, out);
  if (has_schema) AppendResponseSchema(*conversation.response_schema_json, out);
  if (system != nullptr) AppendAddedTools(system->added_tools, out);
  return system == nullptr ? 0 : 1;
}

std::vector<Segment> Render(const Conversation& conversation, const RenderOptions& options) {
  const bool is_v4 = conversation.form == PromptForm::kV4;
  const FormStyle& style = is_v4 ? kStyleV4 : kStyleV41;
  SegmentBuilder out;
  size_t first_turn = options.first_turn;
  if (first_turn == 0) {
    if (options.add_begin_token) out.Special(kBosString);
    first_turn = is_v4 ? AppendHeadV4(conversation, &out) : AppendHeadV41(conversation, &out);
  }
  AppendTurns(style, conversation, options, first_turn, &out);
  return out.Take();
}

}  // namespace deepinfer
