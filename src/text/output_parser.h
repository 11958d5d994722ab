// Splits generated text into reasoning, answer and tool calls while it arrives: a character-level
// state machine with hold-back, so that any split of the input gives the same events after
// neighbours are joined (encoding.md §12-§14, §16). It never fails.
// Thread rule: one object, one thread. Owner: the choice whose text it reads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/output_event.h"

namespace deepinfer {

enum class ParserStart : unsigned char {
  kContentStart,           // leading newlines are dropped
  kContentContinuation,    // text continues a given answer
  kReasoningStart,         // leading newlines are dropped
  kReasoningContinuation,  // text continues given reasoning
};

struct ParserSettings {
  ParserStart start = ParserStart::kContentStart;
  bool parse_tool_calls = false;      // off: tool markup is ordinary text
  bool starts_in_tool_calls = false;  // the prompt already opened the calls block
  bool parse_json_output = false;     // keep only the JSON of the answer (encoding.md §17)
  std::vector<std::string> stop_strings;
  bool include_stop_string = false;     // the matched string stays in the answer
  int64_t num_tokens_without_stop = 0;  // no stop string ends in the text of that many tokens
  int32_t think_end_id = -1;            // -1: not recognised by id
  int32_t dsml_id = -1;
};

class OutputParser {
 public:
  explicit OutputParser(ParserSettings settings);
  ~OutputParser();
  OutputParser(OutputParser&&) noexcept;
  OutputParser& operator=(OutputParser&&) noexcept;

  // Reports in OutputEvent::tokens which tokens each text came from. Call before the first push.
  void TrackTokens();

  // One token and the text that became complete with it (whole code points; may be empty).
  // Markers are recognised by id only. Tokens, counted from 0, [first_token, last_token] share the
  // text: a code point split over tokens belongs to all of them. Appends to `out`, joining its last
  // event with the next one of the same kind and call.
  void PushToken(int32_t id, std::string_view text, int64_t first_token, int64_t last_token,
                 std::vector<OutputEvent>* out);

  // Text without ids: markers are recognised by their strings.
  void PushText(std::string_view text, std::vector<OutputEvent>* out);

  // End of input: releases held text and counts what was left open. Call once.
  void Finish(std::vector<OutputEvent>* out);

  // State behind what was pushed so far. Held text counts for the state it would be released to.
  OutputStage stage() const;

  // A stop string matched; everything later is ignored.
  bool stopped() const;
  int32_t num_calls() const;
  const MalformedCounts& malformed() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer
