// What an output must match, as text: the form in which a grammar travels from a request to the
// compile pool, into the cache key and over the wire (structured_outputs.md §1).
// Thread rule: values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/sha256.h"
#include "text/conversation.h"

namespace deepinfer {

enum class GrammarKind : unsigned char {
  kJsonObject,     // text: empty; any JSON object
  kJsonSchema,     // text: a JSON Schema; only the properties it names
  kRegex,          // text: a regular expression for the whole output
  kEbnf,           // text: rules in EBNF, the start rule is "root"
  kChoice,         // text: JSON array of strings
  kToolCalls,      // text: JSON array of tools {"function": {"name", "parameters"}}
  kStructuralTag,  // text: structural tag in JSON; ｜DSML｜ in it is the marker token
};
std::string_view GrammarKindName(GrammarKind kind);

// Where the output stands in the calls block when a kToolCalls grammar begins
// (structured_outputs.md §2).
enum class CallsStart : unsigned char {
  kBehindMarker,   // `<[M]` was just written: tools with the choice auto
  kInsideBlock,    // the prompt ends with the opening tag: forced calls
  kWholeBlock,     // two line ends and the opening tag come first: forced behind the reasoning
  kAnswerOrBlock,  // either an answer that follows `answer_schema` or a whole block
};

struct GrammarSource {
  GrammarKind kind = GrammarKind::kJsonObject;
  std::string text = {};

  // Of kToolCalls.
  PromptForm prompt_form = PromptForm::kV41;
  CallsStart calls_start = CallsStart::kBehindMarker;
  bool parallel_calls = true;
  std::string answer_schema = {};  // a JSON Schema; of kAnswerOrBlock

  bool operator==(const GrammarSource&) const = default;
};

// Equal for equal sources only; part of the cache key.
Sha256Digest DigestOf(const GrammarSource& source);

// Bytes for another process, and back. Error of the latter: data_corruption.
std::string SerializeGrammarSource(const GrammarSource& source);
Result<GrammarSource> ParseGrammarSource(std::string_view bytes);

}  // namespace deepinfer
