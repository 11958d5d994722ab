#include "text/grammar_source.h"

#include <cstring>

namespace deepinfer {

namespace {

// Everything but the texts, in fixed places.
struct Header {
  uint8_t kind = 0;
  uint8_t prompt_form = 0;
  uint8_t calls_start = 0;
  uint8_t parallel_calls = 0;
  uint32_t text_bytes = 0;
};
static_assert(sizeof(Header) == 8);

}  // namespace

std::string_view GrammarKindName(GrammarKind kind) {
  switch (kind) {
    case GrammarKind::kJsonObject:
      return "json_object";
    case GrammarKind::kJsonSchema:
      return "json_schema";
    case GrammarKind::kRegex:
      return "regex";
    case GrammarKind::kEbnf:
      return "ebnf";
    case GrammarKind::kChoice:
      return "choice";
    case GrammarKind::kToolCalls:
      return "tool_calls";
    case GrammarKind::kStructuralTag:
      return "structural_tag";
  }
  return "unknown";
}

std::string SerializeGrammarSource(const GrammarSource& source) {
  Header header;
  header.kind = static_cast<uint8_t>(source.kind);
  header.prompt_form = static_cast<uint8_t>(source.prompt_form);
  header.calls_start = static_cast<uint8_t>(source.calls_start);
  header.parallel_calls = source.parallel_calls ? 1 : 0;
  header.text_bytes = static_cast<uint32_t>(source.text.size());
  std::string bytes(sizeof(header), '\0');
  std::memcpy(bytes.data(), &header, sizeof(header));
  return bytes + source.text + source.answer_schema;
}

Result<GrammarSource> ParseGrammarSource(std::string_view bytes) {
  Header header;
  if (bytes.size() < sizeof(header)) return DataCorruption("a grammar source is cut off");
  std::memcpy(&header, bytes.data(), sizeof(header));
  bytes.remove_prefix(sizeof(header));
  if (header.kind > static_cast<uint8_t>(GrammarKind::kStructuralTag) ||
      header.prompt_form > static_cast<uint8_t>(PromptForm::kV41) ||
      header.calls_start > static_cast<uint8_t>(CallsStart::kAnswerOrBlock) ||
      header.parallel_calls > 1 || header.text_bytes > bytes.size()) {
    return DataCorruption("a grammar source has an unknown form");
  }
  GrammarSource source;
  source.kind = static_cast<GrammarKind>(header.kind);
  source.prompt_form = static_cast<PromptForm>(header.prompt_form);
  source.calls_start = static_cast<CallsStart>(header.calls_start);
  source.parallel_calls = header.parallel_calls == 1;
  source.text = bytes.substr(0, header.text_bytes);
  source.answer_schema = bytes.substr(header.text_bytes);
  return source;
}

Sha256Digest DigestOf(const GrammarSource& source) {
  return Sha256(SerializeGrammarSource(source));
}

}  // namespace deepinfer
