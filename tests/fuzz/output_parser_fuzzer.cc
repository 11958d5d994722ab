// Any bytes as generated text: no crash, the same events whole, byte by byte and as tokens, and
// without tools no byte lost but newlines and end-of-reasoning markers.
// The first byte chooses the settings, the rest is the text.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/utf8.h"
#include "text/output_parser.h"
#include "text/special_tokens.h"

namespace {

using namespace deepinfer;

constexpr int32_t kThinkEndId = 1;
constexpr int32_t kDsmlId = 2;
constexpr int32_t kTextId = 3;

struct Outcome {
  std::vector<std::pair<OutputEventKind, std::string>> events;  // neighbours joined
  MalformedCounts malformed;
};

ParserSettings SettingsFrom(uint8_t flags) {
  ParserSettings settings;
  settings.start = static_cast<ParserStart>(flags & 3);
  settings.parse_tool_calls = (flags & 4) != 0;
  settings.starts_in_tool_calls = (flags & 8) != 0;
  if ((flags & 16) != 0) settings.stop_strings = {"END", "aab", "\n\n", "</think>", "D"};
  settings.include_stop_string = (flags & 32) != 0;
  settings.parse_json_output = (flags & 64) != 0;
  settings.think_end_id = kThinkEndId;
  settings.dsml_id = kDsmlId;
  return settings;
}

class Run {
 public:
  explicit Run(const ParserSettings& settings) : parser_(settings) {}

  void Text(std::string_view text) {
    parser_.PushText(text, &events_);
    Take();
  }
  void Token(int32_t id, std::string_view text) {
    parser_.PushToken(id, text, -1, -1, &events_);
    Take();
  }
  Outcome Finish() {
    parser_.Finish(&events_);
    Take();
    outcome_.malformed = parser_.malformed();
    return std::move(outcome_);
  }

 private:
  void Take() {
    for (OutputEvent& event : std::exchange(events_, {})) {
      const bool is_text = event.kind == OutputEventKind::kReasoning ||
                           event.kind == OutputEventKind::kContent ||
                           event.kind == OutputEventKind::kArguments;
      DI_CHECK(!is_text || !event.text.empty());
      if (is_text && !outcome_.events.empty() && outcome_.events.back().first == event.kind) {
        outcome_.events.back().second += event.text;
      } else {
        outcome_.events.emplace_back(event.kind, std::move(event.text));
      }
    }
  }

  OutputParser parser_;
  std::vector<OutputEvent> events_;
  Outcome outcome_;
};

// Leftmost marker in `text` at or behind `begin`: its place and id, or {npos, 0}.
std::pair<size_t, int32_t> FindMarker(std::string_view text, size_t begin) {
  const size_t think_end = text.find(kThinkEndString, begin);
  const size_t dsml = text.find(kDsmlString, begin);
  if (think_end < dsml) return {think_end, kThinkEndId};
  return {dsml, dsml == std::string_view::npos ? 0 : kDsmlId};
}

Outcome RunTokens(const ParserSettings& settings, std::string_view text) {
  Run run(settings);
  size_t begin = 0;
  while (begin < text.size()) {
    const auto [marker, id] = FindMarker(text, begin);
    for (; begin < text.size() && begin < marker; ++begin) {
      run.Token(kTextId, text.substr(begin, 1));
    }
    if (id == 0) break;
    const std::string_view spelling = id == kDsmlId ? kDsmlString : kThinkEndString;
    run.Token(id, spelling);
    begin += spelling.size();
  }
  return run.Finish();
}

std::string WithoutNewlines(std::string_view text) {
  std::string kept;
  for (char c : text) {
    if (c != '\n') kept += c;
  }
  return kept;
}

std::string WithoutThinkEnds(std::string_view text) {
  std::string kept;
  while (true) {
    const size_t marker = text.find(kThinkEndString);
    kept += text.substr(0, marker);
    if (marker == std::string_view::npos) return kept;
    text.remove_prefix(marker + kThinkEndString.size());
  }
}

void CheckEqual(const Outcome& a, const Outcome& b) {
  DI_CHECK(a.events == b.events);
  DI_CHECK(a.malformed.count == b.malformed.count);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const ParserSettings settings = SettingsFrom(data[0]);
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);

  Run whole_run(settings);
  whole_run.Text(text);
  const Outcome whole = whole_run.Finish();

  Run bytes_run(settings);
  for (size_t i = 0; i < text.size(); ++i) bytes_run.Text(text.substr(i, 1));
  const Outcome bytes = bytes_run.Finish();
  const Outcome tokens = RunTokens(settings, text);
  // Extraction shows one space per step for what it drops.
  if (!settings.parse_json_output) {
    CheckEqual(whole, bytes);
    CheckEqual(whole, tokens);
  }

  std::string shown;
  for (const auto& [kind, piece] : whole.events) {
    if (IsValidUtf8(text)) DI_CHECK(IsValidUtf8(piece));
    shown += piece;
  }
  const bool keeps_all =
      !settings.parse_tool_calls && settings.stop_strings.empty() && !settings.parse_json_output;
  if (keeps_all) DI_CHECK(WithoutNewlines(shown) == WithoutNewlines(WithoutThinkEnds(text)));
  return 0;
}
