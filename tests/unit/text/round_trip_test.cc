// An assistant turn that is rendered and parsed back is the same turn.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "text/json_text.h"
#include "text/output_parser.h"
#include "text/prompt_encoder.h"
#include "text/python_json.h"
#include "text/renderer.h"
#include "text/special_tokens.h"

namespace deepinfer {
namespace {

namespace json = boost::json;

class RandomTurn {
 public:
  explicit RandomTurn(uint64_t seed) : random_(seed) {}

  AssistantTurn Make() {
    AssistantTurn turn;
    turn.reasoning = Line();
    turn.text = Line();
    const size_t num_calls = Below(4);
    for (size_t i = 0; i < num_calls; ++i) {
      turn.calls.push_back(
          {std::to_string(i), "tool_" + std::to_string(Below(9)), PythonJson(Object(0))});
    }
    return turn;
  }

 private:
  size_t Below(size_t n) { return random_() % n; }

  // Newlines at the edges belong to the format, and the closing think string ends reasoning;
  // neither occurs here.
  std::string Line() {
    static const std::vector<std::string> kPieces = {"a",  "é",  "\n\nb", "</x>", "<think>",
                                                     "\"", "\\", "👍",     "<",    "{}"};
    std::string line;
    for (size_t i = Below(5); i > 0; --i) line += kPieces[Below(kPieces.size())];
    return line.empty() || line.front() == '\n' ? "x" + line : line;
  }

  // The parser writes keys as they stand, so those of parameters need no escaping.
  json::object Object(int depth) {
    static const std::vector<std::string> kKeys = {"a", "é ü", "<x>", "name", "👍"};
    json::object object;
    for (size_t i = Below(4); i > 0; --i) {
      object[(depth == 0 ? kKeys[Below(kKeys.size())] : Line()) + std::to_string(i)] = Value(depth);
    }
    return object;
  }

  json::value Value(int depth) {
    switch (Below(depth < 3 ? 7 : 5)) {
      case 0:
        return json::value(Line() + "\n");
      case 1:
        return static_cast<int64_t>(random_());
      case 2:
        return static_cast<double>(Below(1000)) / 7;
      case 3:
        return nullptr;
      case 4:
        return Below(2) == 0;
      case 5:
        return Object(depth + 1);
      default:
        return json::array{Value(depth + 1), Value(depth + 1)};
    }
  }

  std::mt19937_64 random_;
};

// What the model would have to generate for this turn.
std::string GeneratedText(PromptForm form, const AssistantTurn& turn) {
  Conversation conversation;
  conversation.form = form;
  conversation.tools = {{"f", "", "{}"}};
  conversation.tool_mode = ToolMode::kAuto;
  UserTurn user;
  user.parts.emplace_back(ContentPart::Text("q"));
  conversation.turns = {user, turn};
  const std::string prompt = BuildPromptText(Render(conversation)).prompt;
  const std::string header = std::string(kAssistantString) + std::string(kThinkBeginString);
  const size_t begin = prompt.find(header) + header.size();
  return prompt.substr(begin, prompt.find(kEosString, begin) - begin);
}

struct ParsedTurn {
  std::string reasoning;
  std::string text;
  std::vector<std::pair<std::string, std::string>> calls;  // name, arguments
};

ParsedTurn ParseBack(const std::string& generated) {
  ParserSettings settings;
  settings.start = ParserStart::kReasoningStart;
  settings.parse_tool_calls = true;
  OutputParser parser(settings);
  std::vector<OutputEvent> events;
  parser.PushText(generated, &events);
  parser.Finish(&events);
  EXPECT_FALSE(parser.malformed().any()) << generated;
  ParsedTurn parsed;
  for (const OutputEvent& event : events) {
    if (event.kind == OutputEventKind::kReasoning) parsed.reasoning += event.text;
    if (event.kind == OutputEventKind::kContent) parsed.text += event.text;
    if (event.kind == OutputEventKind::kCallStart) parsed.calls.emplace_back(event.text, "");
    if (event.kind == OutputEventKind::kArguments) parsed.calls.back().second += event.text;
  }
  return parsed;
}

json::value ToJson(const std::string& text) {
  JsonDocument document;
  JsonFailure failure;
  EXPECT_TRUE(ParseJson(text, &document, &failure)) << text;
  return document.root();
}

TEST(RoundTrip, RenderedTurnsParseBackToThemselves) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    const AssistantTurn turn = RandomTurn(seed).Make();
    const PromptForm form = seed % 4 == 0 ? PromptForm::kV4 : PromptForm::kV41;
    const std::string generated = GeneratedText(form, turn);
    SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + generated);
    const ParsedTurn parsed = ParseBack(generated);
    ASSERT_EQ(parsed.reasoning, turn.reasoning);
    ASSERT_EQ(parsed.text, turn.text);
    ASSERT_EQ(parsed.calls.size(), turn.calls.size());
    for (size_t i = 0; i < turn.calls.size(); ++i) {
      EXPECT_EQ(parsed.calls[i].first, turn.calls[i].name);
      EXPECT_EQ(ToJson(parsed.calls[i].second), ToJson(turn.calls[i].arguments));
    }
  }
}

}  // namespace
}  // namespace deepinfer
