// The head of the older V4 prompt form (encoding.md §11): no system token, effort in words.
#include <string_view>

#include "text/prompt_parts.h"
#include "text/renderer.h"

namespace deepinfer {
namespace {

constexpr std::string_view kEffortHighParagraph =
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to "
    "resolve the root cause, rigorously stress-testing your logic against all potential paths, "
    "edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, "
    "considered alternative, and rejected hypothesis to ensure absolutely no assumption is left "
    "unchecked.\n\n";

constexpr std::string_view kEffortMaxParagraph =
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: "
    "exhaustively decompose the problem into its most fundamental components, trace every causal "
    "chain to its root, and resolve the underlying cause rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple "
    "angles and are certain that no assumption remains unchecked and no error remains "
    "undiscovered.\n\n";

constexpr std::string_view kJsonObjectBlock =
    "\n\nYou are a helpful assistant designed to output JSON.\n"
    "## Response Format:\n\n"
    "Reply with JSON object ONLY.";

// V4 knows three steps; numbers in between take the paragraph of the step below them.
std::string_view EffortParagraph(int32_t effort) {
  if (effort >= kEffortMax) return kEffortMaxParagraph;
  if (effort >= kEffortHigh) return kEffortHighParagraph;
  return {};
}

}  // namespace

size_t AppendHeadV4(const Conversation& conversation, SegmentBuilder* out) {
  if (conversation.thinking) out->Text(EffortParagraph(conversation.effort));
  const SystemTurn* system =
      conversation.turns.empty() ? nullptr : std::get_if<SystemTurn>(&conversation.turns.front());
  if (system != nullptr) AppendContentParts(kStyleV4, system->parts, out);
  if (conversation.tools_in_effect()) AppendToolsBlock(kStyleV4, conversation.tools, out);
  if (conversation.response_schema_json.has_value()) {
    if (*conversation.response_schema_json == kJsonObjectSchema) {
      out->Text(kJsonObjectBlock);
    } else {
      AppendResponseSchema(*conversation.response_schema_json, out);
    }
  }
  return system == nullptr ? 0 : 1;
}

}  // namespace deepinfer
