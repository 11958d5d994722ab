// What the output parser reports about generated text, and what it counts (encoding.md §12-§16).
// Thread rule: values.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer {

enum class OutputEventKind : unsigned char {
  kReasoning,    // text: a piece of reasoning
  kContent,      // text: a piece of the answer
  kCallStart,    // text: the tool name; call_index counts from 0
  kArguments,    // text: a fragment of the JSON arguments of call_index
  kCallEnd,      // the call was closed by the model; truncated calls have none
  kStopMatched,  // text: the stop string; nothing follows it
};

struct OutputEvent {
  OutputEventKind kind = OutputEventKind::kContent;
  int32_t call_index = -1;
  std::string text;
  // Reasoning and content only, and only with token tracking: indexes of the tokens, counted from
  // the first one pushed, that contribute to this text and to no earlier event of this kind.
  // Markers and text that was dropped appear in no event.
  std::vector<int64_t> tokens;
};

// Where a token was committed: the parser state behind it, so that the token closing the
// reasoning counts as content and one opening a tool block as tool section.
enum class OutputStage : unsigned char { kReasoning, kContent, kTools, kDone };

// Malformed output the parser met (encoding.md §16); exported as
// deepinfer:parser_events_total{kind}.
enum class MalformedKind : unsigned char {
  kNoThinkEnd,
  kBlockInReasoning,
  kStrayThinkEnd,
  kUnclosedBlock,
  kTruncatedCall,
  kTruncatedOpener,
  kMalformedBlock,
  kJunk,
  kDuplicateParameter,
  kBadJsonValue,
  kBadParameter,
};
inline constexpr size_t kNumMalformedKinds = 11;

// "no_think_end", "junk", ... as used for the metric label.
std::string_view MalformedKindName(MalformedKind kind);

struct MalformedCounts {
  std::array<int32_t, kNumMalformedKinds> count{};

  void Add(MalformedKind kind) { ++count[static_cast<size_t>(kind)]; }
  int32_t operator[](MalformedKind kind) const { return count[static_cast<size_t>(kind)]; }
  bool any() const {
    for (int32_t n : count) {
      if (n != 0) return true;
    }
    return false;
  }
};

}  // namespace deepinfer
