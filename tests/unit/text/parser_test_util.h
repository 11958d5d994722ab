// Runs texts and tokens through the output parser and sums up what came out.
// Thread rule: tests run on one thread.
#pragma once

#include <cstdint>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/output_parser.h"
#include "text/output_pipeline.h"
#include "unit/text/text_test_data.h"

namespace deepinfer::testing {

inline constexpr int32_t kThinkEndId = 128822;
inline constexpr int32_t kDsmlId = 128825;

struct ParsedCall {
  std::string name;
  std::string arguments;
  bool closed = false;

  bool operator==(const ParsedCall&) const = default;
};

struct ParsedOutput {
  std::string reasoning;
  std::string content;
  std::vector<ParsedCall> calls;
  std::string stop;
  std::string order;  // first letters of the joined events: R, C, S(tart), A, E(nd), X (stop)
  MalformedCounts malformed;

  bool operator==(const ParsedOutput& other) const {
    return reasoning == other.reasoning && content == other.content && calls == other.calls &&
           stop == other.stop && order == other.order && malformed.count == other.malformed.count;
  }
};

inline std::ostream& operator<<(std::ostream& out, const ParsedOutput& parsed) {
  out << "order " << parsed.order << "\nreasoning [" << parsed.reasoning << "]\ncontent ["
      << parsed.content << "]\nstop [" << parsed.stop << "]";
  for (const ParsedCall& call : parsed.calls) {
    out << "\ncall [" << call.name << "] [" << call.arguments << "]"
        << (call.closed ? "" : " open");
  }
  for (size_t i = 0; i < kNumMalformedKinds; ++i) {
    if (parsed.malformed.count[i] == 0) continue;
    out << "\n"
        << MalformedKindName(static_cast<MalformedKind>(i)) << " " << parsed.malformed.count[i];
  }
  return out;
}

inline void AddEvents(const std::vector<OutputEvent>& events, ParsedOutput* parsed) {
  for (const OutputEvent& event : events) {
    char letter = '?';
    switch (event.kind) {
      case OutputEventKind::kReasoning:
        parsed->reasoning += event.text;
        letter = 'R';
        break;
      case OutputEventKind::kContent:
        parsed->content += event.text;
        letter = 'C';
        break;
      case OutputEventKind::kCallStart:
        EXPECT_EQ(event.call_index, static_cast<int32_t>(parsed->calls.size()));
        parsed->calls.push_back({event.text, {}, false});
        letter = 'S';
        break;
      case OutputEventKind::kArguments:
        EXPECT_EQ(event.call_index + 1, static_cast<int32_t>(parsed->calls.size()));
        parsed->calls.back().arguments += event.text;
        letter = 'A';
        break;
      case OutputEventKind::kCallEnd:
        parsed->calls.back().closed = true;
        letter = 'E';
        break;
      case OutputEventKind::kStopMatched:
        parsed->stop = event.text;
        letter = 'X';
        break;
    }
    const bool has_text = event.kind == OutputEventKind::kReasoning ||
                          event.kind == OutputEventKind::kContent ||
                          event.kind == OutputEventKind::kArguments;
    EXPECT_EQ(has_text && event.text.empty(), false) << "an empty piece of text";
    if (!has_text || parsed->order.empty() || parsed->order.back() != letter) {
      parsed->order += letter;
    }
  }
}

inline ParserSettings WithIds(ParserSettings settings) {
  settings.think_end_id = kThinkEndId;
  settings.dsml_id = kDsmlId;
  return settings;
}

// Each piece is pushed on its own and its events are taken before the next one.
inline ParsedOutput ParsePieces(const ParserSettings& settings,
                                const std::vector<std::string>& pieces) {
  OutputParser parser(settings);
  ParsedOutput parsed;
  std::vector<OutputEvent> events;
  for (const std::string& piece : pieces) {
    parser.PushText(piece, &events);
    AddEvents(events, &parsed);
    events.clear();
  }
  parser.Finish(&events);
  AddEvents(events, &parsed);
  parsed.malformed = parser.malformed();
  return parsed;
}

inline ParsedOutput ParseText(const ParserSettings& settings, std::string_view text) {
  return ParsePieces(settings, {std::string(text)});
}

// `group` tokens a step.
inline ParsedOutput ParseIds(const ParserSettings& settings, std::span<const int32_t> ids,
                             size_t group) {
  OutputPipeline pipeline(ReleasedTokenizer(), WithIds(settings));
  ParsedOutput parsed;
  std::vector<OutputEvent> events;
  for (size_t i = 0; i < ids.size(); i += group) {
    pipeline.Push(ids.subspan(i, std::min(group, ids.size() - i)), &events);
    AddEvents(events, &parsed);
    events.clear();
  }
  pipeline.Finish(&events);
  AddEvents(events, &parsed);
  parsed.malformed = pipeline.malformed();
  return parsed;
}

inline std::vector<std::string> Characters(std::string_view text) {
  std::vector<std::string> pieces;
  for (char c : text) pieces.emplace_back(1, c);
  return pieces;
}

// The text whole, byte by byte, cut in two at every position, and as tokens (marker strings become
// their ids) in steps of 1..8, all give the same; returns it.
inline ParsedOutput ParseEverySplit(const ParserSettings& settings, std::string_view text) {
  const ParsedOutput whole = ParseText(settings, text);
  EXPECT_EQ(ParsePieces(settings, Characters(text)), whole) << text;
  for (size_t i = 1; i < text.size(); ++i) {
    const ParsedOutput cut =
        ParsePieces(settings, {std::string(text.substr(0, i)), std::string(text.substr(i))});
    EXPECT_EQ(cut, whole) << "cut at " << i << " of " << text;
    if (!(cut == whole)) break;
  }
  const std::vector<int32_t> ids = EncodeWithSpecials(ReleasedTokenizer(), text);
  for (size_t group = 1; group <= 8; ++group) {
    EXPECT_EQ(ParseIds(settings, ids, group), whole) << "steps of " << group << ": " << text;
  }
  return whole;
}

// A block of one call in V4.1 spelling.
inline std::string Block(std::string_view inside) {
  return "<｜DSML｜ calls>\n" + std::string(inside) + "\n</｜DSML｜ calls>";
}
inline std::string Invoke(std::string_view name, std::string_view parameters) {
  return "<｜DSML｜ invoke name=\"" + std::string(name) + "\">\n" + std::string(parameters) +
         "\n</｜DSML｜ invoke>";
}
inline std::string Parameter(std::string_view name, bool is_string, std::string_view value) {
  return "<｜DSML｜ parameter name=\"" + std::string(name) + "\" string=\"" +
         (is_string ? "true" : "false") + "\">" + std::string(value) + "</｜DSML｜ parameter>";
}

inline ParserSettings Plain() { return {}; }
inline ParserSettings Thinking() {
  ParserSettings settings;
  settings.start = ParserStart::kReasoningStart;
  return settings;
}
inline ParserSettings WithTools(ParserSettings settings = {}) {
  settings.parse_tool_calls = true;
  return settings;
}
inline ParserSettings WithStops(std::vector<std::string> stops, ParserSettings settings = {}) {
  settings.stop_strings = std::move(stops);
  return settings;
}

}  // namespace deepinfer::testing
