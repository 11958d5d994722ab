#include "text/sampled_turn.h"

#include <algorithm>
#include <boost/json.hpp>
#include <utility>

#include "text/json_text.h"
#include "text/output_pipeline.h"
#include "text/tokenizer.h"

namespace deepinfer {
namespace {

namespace json = boost::json;

bool IsEqual(const json::value& a, const json::value& b) {
  if (a.is_number() && b.is_number()) {
    // Values of one kind compare exactly; across kinds a writer chose between 1 and 1.0.
    if (a.is_double() != b.is_double()) return a.to_number<double>() == b.to_number<double>();
    return a == b;
  }
  if (a.kind() != b.kind()) return false;
  if (a.is_array()) {
    return std::equal(a.get_array().begin(), a.get_array().end(), b.get_array().begin(),
                      b.get_array().end(), IsEqual);
  }
  if (!a.is_object()) return a == b;
  if (a.get_object().size() != b.get_object().size()) return false;
  return std::all_of(a.get_object().begin(), a.get_object().end(), [&](const auto& member) {
    const json::value* other = b.get_object().if_contains(member.key());
    return other != nullptr && IsEqual(member.value(), *other);
  });
}

bool IsJson(std::string_view text) {
  JsonDocument document;
  JsonFailure failure;
  return ParseJson(text, &document, &failure);
}

// Arguments that are no JSON reach some clients as they are, others as an empty object.
bool IsSameArguments(std::string_view sampled, std::string_view sent) {
  if (sampled == sent || IsEqualJson(sampled, sent)) return true;
  return !IsJson(sampled) && IsEqualJson(sent, "{}");
}

// The turn as every dialect showed it to its client.
AssistantTurn ParseTurn(const Tokenizer& tokenizer, const SpecialTokens& special,
                        std::span<const int32_t> ids) {
  ParserSettings settings;
  settings.start = ids.front() == special.think_begin ? ParserStart::kReasoningStart
                                                      : ParserStart::kContentStart;
  settings.parse_tool_calls = true;
  settings.think_end_id = special.think_end;
  settings.dsml_id = special.dsml;
  OutputPipeline pipeline(tokenizer, std::move(settings));
  std::vector<OutputEvent> events;
  pipeline.Push(ids.subspan(1, ids.size() - 2), &events);
  pipeline.Finish(&events);
  AssistantTurn turn;
  for (OutputEvent& event : events) {
    switch (event.kind) {
      case OutputEventKind::kReasoning:
        turn.reasoning += event.text;
        break;
      case OutputEventKind::kContent:
        turn.text += event.text;
        break;
      case OutputEventKind::kCallStart:
        turn.calls.push_back({{}, std::move(event.text), {}});
        break;
      case OutputEventKind::kArguments:
        turn.calls.back().arguments += event.text;
        break;
      case OutputEventKind::kCallEnd:
      case OutputEventKind::kStopMatched:
        break;
    }
  }
  return turn;
}

void AppendIds(const Tokenizer& tokenizer, std::span<const int32_t> ids,
               std::vector<Segment>* segments) {
  while (!ids.empty()) {
    const auto is_added = [&](int32_t id) { return tokenizer.IsAdded(id); };
    const auto text_end = std::find_if(ids.begin(), ids.end(), is_added);
    if (text_end != ids.begin()) {
      Segment& text = segments->emplace_back();
      text.ids.assign(ids.begin(), text_end);
      text.text = tokenizer.Decode(text.ids);
      ids = ids.subspan(text.ids.size());
    } else {
      segments->push_back({Segment::Kind::kSpecial, std::string(tokenizer.TokenBytes(ids[0]))});
      ids = ids.subspan(1);
    }
  }
}

}  // namespace

bool IsEqualJson(std::string_view a, std::string_view b) {
  JsonDocument first;
  JsonDocument second;
  JsonFailure failure;
  return ParseJson(a, &first, &failure) && ParseJson(b, &second, &failure) &&
         IsEqual(first.root(), second.root());
}

std::optional<std::vector<Segment>> RestoreSampledTurn(const Tokenizer& tokenizer,
                                                       const SpecialTokens& special,
                                                       std::span<const int32_t> ids,
                                                       const AssistantTurn& turn,
                                                       bool keep_reasoning) {
  if (ids.size() < 2) return std::nullopt;
  const AssistantTurn sampled = ParseTurn(tokenizer, special, ids);
  const bool same_calls =
      std::equal(sampled.calls.begin(), sampled.calls.end(), turn.calls.begin(), turn.calls.end(),
                 [](const ToolCall& a, const ToolCall& b) {
                   return a.name == b.name && IsSameArguments(a.arguments, b.arguments);
                 });
  if (!same_calls || sampled.text != turn.text) return std::nullopt;

  const bool thought = ids.front() == special.think_begin;
  std::vector<Segment> segments;
  if (keep_reasoning && thought &&
      (turn.reasoning.empty() || turn.reasoning == sampled.reasoning)) {
    AppendIds(tokenizer, ids, &segments);
    return segments;
  }
  const auto think_end = std::find(ids.begin(), ids.end(), special.think_end);
  // Reasoning that a call cut short has no end to part it at.
  if (think_end == ids.end()) return std::nullopt;
  if (keep_reasoning) {
    segments.push_back({Segment::Kind::kSpecial, std::string(kThinkBeginString)});
    if (!turn.reasoning.empty()) segments.push_back({Segment::Kind::kText, turn.reasoning});
  }
  AppendIds(tokenizer, ids.subspan(static_cast<size_t>(think_end - ids.begin())), &segments);
  return segments;
}

}  // namespace deepinfer
