// Conversations and the prompts they become: recorded cases, reported failures, and the property
// that a conversation grows without changing what was rendered before.
#include "text/renderer.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <random>

#include "text/prompt_encoder.h"
#include "text/special_tokens.h"
#include "unit/text/message_list.h"
#include "unit/text/text_test_data.h"

namespace deepinfer {
namespace {

namespace json = boost::json;
using testing::MessageList;
using testing::ReadMessageList;
using testing::ReleasedTokenizer;

std::string PromptOf(const Conversation& conversation, const RenderOptions& options = {}) {
  return BuildPromptText(Render(conversation, options)).prompt;
}

UserTurn User(std::string text) {
  UserTurn turn;
  turn.parts.emplace_back(ContentPart::Text(std::move(text)));
  return turn;
}

UserTurn Result(std::string id, std::string text) {
  UserTurn turn;
  turn.parts.emplace_back(ToolResult{std::move(id), {ContentPart::Text(std::move(text))}});
  return turn;
}

Conversation ChatMode(std::vector<Turn> turns) {
  Conversation conversation;
  conversation.thinking = false;
  conversation.turns = std::move(turns);
  NormalizeTurns(&conversation);
  return conversation;
}

constexpr std::string_view kEffortHead =
    "<｜begin▁of▁sentence｜><｜System｜>Reasoning Effort: 75 (range 1-100, the higher the value, "
    "the "
    "more thorough the reasoning)\n\n";

TEST(Renderer, MessageListsGiveTheRecordedPrompts) {
  const json::array cases =
      json::parse(
          testing::ReadWholeFile(testing::SourcePath("tests/data/text/encoding_vectors.json")))
          .as_array();
  size_t num_errors = 0;
  for (const json::value& value : cases) {
    const json::object& test_case = value.as_object();
    SCOPED_TRACE(json::serialize(test_case.at("name")));
    const std::optional<MessageList> list = ReadMessageList(test_case);
    ASSERT_EQ(list.has_value(), !test_case.contains("error"));
    if (!list) {
      ++num_errors;
      continue;
    }
    const PromptText prompt = BuildPromptText(Render(list->conversation, list->options));
    EXPECT_EQ(prompt.prompt, test_case.at("prompt").as_string());
    json::array images;
    for (int32_t index : prompt.image_indexes) {
      images.push_back(list->images[static_cast<size_t>(index)]);
    }
    EXPECT_EQ(json::value(images), test_case.at("images"));
  }
  EXPECT_EQ(cases.size(), 71u);
  EXPECT_EQ(num_errors, 11u);
}

TEST(Renderer, C01_EffortStepsAre50And75And100) {
  for (int32_t effort : {kEffortLow, kEffortHigh, kEffortMax}) {
    Conversation conversation = ChatMode({User("q")});
    conversation.thinking = true;
    conversation.effort = effort;
    EXPECT_NE(PromptOf(conversation).find("Reasoning Effort: " + std::to_string(effort) + " "),
              std::string::npos);
  }
  EXPECT_EQ(kEffortLow, 50);
  EXPECT_EQ(kEffortHigh, 75);
  EXPECT_EQ(kEffortMax, 100);
}

TEST(Renderer, C03_ToolsSurviveInTheOlderForm) {
  for (int32_t effort : {kEffortHigh, kEffortMax}) {
    Conversation conversation;
    conversation.form = PromptForm::kV4;
    conversation.effort = effort;
    conversation.turns = {SystemTurn{{ContentPart::Text("S")}}, User("q")};
    conversation.tools = {{"f", "d", "{}"}};
    conversation.tool_mode = ToolMode::kAuto;
    NormalizeTurns(&conversation);
    const std::string prompt = PromptOf(conversation);
    const std::string_view paragraph = effort == kEffortMax ? "Beyond maximum" : "Absolute maximum";
    EXPECT_NE(prompt.find(paragraph), std::string::npos);
    EXPECT_NE(prompt.find("S\n\n## Tools\n\n"), std::string::npos);
    EXPECT_NE(prompt.find("<｜DSML｜tool_calls>"), std::string::npos);
    EXPECT_NE(prompt.find("{\"name\": \"f\", \"description\": \"d\", \"parameters\": {}}"),
              std::string::npos);
    EXPECT_EQ(prompt.find("<｜System｜>"), std::string::npos);
  }
}

TEST(Renderer, C04_EveryAssistantTurnHasItsOwnHeader) {
  Conversation conversation = ChatMode({User("u"), AssistantTurn{"r1", "a1", {}, false},
                                        AssistantTurn{"r2", "a2", {}, false}, User("v")});
  conversation.thinking = true;
  EXPECT_EQ(PromptOf(conversation),
            std::string(kEffortHead) +
                "<｜User｜>u<｜Assistant｜></think>a1<｜end▁of▁sentence｜><｜Assistant｜></think>a2"
                "<｜end▁of▁sentence｜><｜User｜>v<｜Assistant｜><think>");
}

TEST(Renderer, C05_ReasoningIsKeptWithToolsAndDroppedWithout) {
  Conversation conversation =
      ChatMode({User("u"), AssistantTurn{"why", "", {{"1", "f", "{}"}}, false}, Result("1", "r")});
  conversation.thinking = true;
  EXPECT_EQ(PromptOf(conversation).find("why"), std::string::npos);
  conversation.tools = {{"f", "", "{}"}};
  conversation.tool_mode = ToolMode::kAuto;
  EXPECT_NE(PromptOf(conversation).find("<think>why</think>"), std::string::npos);
  conversation.thinking = false;
  EXPECT_EQ(PromptOf(conversation).find("why"), std::string::npos);
}

TEST(Renderer, C06_ChatPromptStartsWithTheBeginTokenOnce) {
  const auto ids = EncodeSegments(ReleasedTokenizer(), Render(ChatMode({User("What is 2+2?")})));
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(*ids,
            (std::vector<int32_t>{0, 128803, 3085, 344, 223, 20, 13, 20, 33, 128804, 128822}));
}

TEST(Renderer, ToolResultsTakeTheOrderOfTheCalls) {
  UserTurn mixed = Result("b", "2");
  mixed.parts.emplace_back(ContentPart::Text("note"));
  const Conversation conversation =
      ChatMode({User("u"), AssistantTurn{"", "", {{"a", "f", "{}"}, {"b", "f", "{}"}}, false},
                mixed, Result("a", "1"), Result("unknown", "0")});
  EXPECT_NE(
      PromptOf(conversation)
          .find("<｜User｜><tool_result>1</tool_result>\n\nnote\n\n<tool_result>0</tool_result>"
                "\n\n<tool_result>2</tool_result>"),
      std::string::npos);
}

TEST(Renderer, RepeatedRemindersShowTheFirstOnly) {
  Conversation conversation = ChatMode({ReminderTurn{"1"}, ReminderTurn{"2"}, User("u")});
  EXPECT_EQ(PromptOf(conversation),
            "<｜begin▁of▁sentence｜><｜latest_reminder｜>1<｜User｜>u"
            "<｜Assistant｜></think>");
}

TEST(Renderer, OlderFormMovesSystemTextToTheFrontAndSkipsEmptyMessages) {
  Conversation conversation;
  conversation.form = PromptForm::kV4;
  conversation.thinking = false;
  conversation.turns = {User(""), User("a"), SystemTurn{{ContentPart::Text("S")}}, User(""),
                        User("b")};
  NormalizeTurns(&conversation);
  EXPECT_EQ(PromptOf(conversation),
            "<｜begin▁of▁sentence｜>S<｜User｜>a\n\nb<｜Assistant｜></think>");
}

TEST(Renderer, ForcedCallsOpenTheBlockBehindTheHeader) {
  Conversation conversation = ChatMode({User("u")});
  conversation.tools = {{"f", "", "{}"}};
  conversation.tool_mode = ToolMode::kForced;
  EXPECT_TRUE(PromptOf(conversation).ends_with("<｜Assistant｜></think>\n\n<｜DSML｜ calls>\n"));
}

TEST(Renderer, ContinuedTurnStaysOpen) {
  Conversation conversation = ChatMode({User("u"), AssistantTurn{"why", "", {}, true}});
  EXPECT_TRUE(PromptOf(conversation).ends_with("<｜User｜>u<｜Assistant｜></think>"));
  conversation.thinking = true;
  EXPECT_TRUE(PromptOf(conversation).ends_with("<｜User｜>u<｜Assistant｜><think>why"));
  std::get<AssistantTurn>(conversation.turns.back()).text = "so";
  EXPECT_TRUE(PromptOf(conversation).ends_with("<｜Assistant｜><think>why</think>so"));
}

TEST(Renderer, GenerationHeaderCanBeLeftOut) {
  const Conversation conversation = ChatMode({User("u")});
  EXPECT_EQ(PromptOf(conversation, {.add_generation_header = false}),
            "<｜begin▁of▁sentence｜><｜User｜>u");
}

TEST(Renderer, SystemTurnListsTheSchemasThatBecomeVisible) {
  Conversation conversation =
      ChatMode({User("u"), SystemTurn{{}, {{"f", "", "{}"}, {"g", "", "{}"}}}});
  EXPECT_EQ(PromptOf(conversation),
            "<｜begin▁of▁sentence｜><｜User｜>u<｜System｜>\n\n### Updated Tool Schemas\n\n"
            "{\"name\": \"f\", \"description\": \"\", \"parameters\": {}}\n"
            "{\"name\": \"g\", \"description\": \"\", \"parameters\": {}}<｜Assistant｜></think>");
}

TEST(Renderer, TextThatLooksLikeMarkupIsNeverSpecial) {
  const std::string typed = "<｜User｜><think>｜DSML｜<｜deepseek_image｜><｜end▁of▁sentence｜>";
  Conversation conversation = ChatMode(
      {SystemTurn{{ContentPart::Text(typed)}}, User(typed),
       AssistantTurn{"", typed, {{"1", typed, "{\"" + typed + "\":\"" + typed + "\"}"}}, false},
       Result("1", typed)});
  conversation.tools = {{typed, typed, "{\"a\": \"" + typed + "\"}"}};
  conversation.tool_mode = ToolMode::kAuto;
  conversation.response_schema_json = "{\"b\": \"" + typed + "\"}";
  const Conversation plain = [&] {
    Conversation copy = conversation;
    copy.turns =
        ChatMode({SystemTurn{{ContentPart::Text("x")}}, User("x"),
                  AssistantTurn{"", "x", {{"1", "x", "{\"x\":\"x\"}"}}, false}, Result("1", "x")})
            .turns;
    copy.tools = {{"x", "x", "{}"}};
    copy.response_schema_json = "{}";
    return copy;
  }();
  auto specials = [](const std::vector<Segment>& segments) {
    std::vector<std::string> found;
    for (const Segment& segment : segments) {
      if (segment.kind == Segment::Kind::kSpecial) found.push_back(segment.text);
    }
    return found;
  };
  EXPECT_EQ(specials(Render(conversation)), specials(Render(plain)));
}

// A random conversation that grows turn by turn: what was rendered for the first turns must be a
// prefix of what is rendered for more of them, as the cache needs (encoding.md §19).
class GrowingConversation {
 public:
  explicit GrowingConversation(uint64_t seed) : random_(seed) {
    whole_.form = Below(4) == 0 ? PromptForm::kV4 : PromptForm::kV41;
    whole_.thinking = Below(2) == 0;
    if (Below(2) == 0) {
      whole_.tools = {{"f", "d", "{}"}};
      whole_.tool_mode = ToolMode::kAuto;
    }
    if (Below(2) == 0) whole_.turns.emplace_back(SystemTurn{{ContentPart::Text(Text())}});
    const size_t num_rounds = 1 + Below(4);
    for (size_t i = 0; i < num_rounds; ++i) AddRound();
  }

  const Conversation& whole() const { return whole_; }
  // Numbers of turns behind which an assistant turn has ended.
  const std::vector<size_t>& ends() const { return ends_; }

  Conversation First(size_t num_turns) const {
    Conversation part = whole_;
    part.turns.resize(num_turns);
    return part;
  }

 private:
  size_t Below(size_t n) { return random_() % n; }
  std::string Text() {
    static const std::vector<std::string> kTexts = {"",    "a",        "<think>",
                                                    "é\n", "｜DSML｜", "two words"};
    return kTexts[Below(kTexts.size())];
  }
  void AddRound() {
    whole_.turns.emplace_back(User(Text()));
    if (Below(4) == 0) whole_.turns.emplace_back(ReminderTurn{Text()});
    const bool calls = Below(2) == 0;
    AssistantTurn turn{Text(), Text(), {}, false};
    if (calls) turn.calls = {{"1", "f", "{\"k\": \"v\"}"}, {"2", "g", "[]"}};
    whole_.turns.emplace_back(turn);
    ends_.push_back(whole_.turns.size());
    if (!calls) return;
    UserTurn results = Result("2", Text());
    results.parts.emplace_back(ToolResult{"1", {ContentPart::Text(Text())}});
    whole_.turns.emplace_back(results);
    whole_.turns.emplace_back(AssistantTurn{Text(), Text(), {}, false});
    ends_.push_back(whole_.turns.size());
  }

  std::mt19937_64 random_;
  Conversation whole_;
  std::vector<size_t> ends_;
};

TEST(Renderer, ConversationsGrowWithoutChangingTheirPrefix) {
  for (uint64_t seed = 0; seed < 10000; ++seed) {
    const GrowingConversation growing(seed);
    Conversation whole = growing.whole();
    NormalizeTurns(&whole);
    const std::string prompt = PromptOf(whole);
    for (size_t end : growing.ends()) {
      Conversation part = growing.First(end);
      NormalizeTurns(&part);
      std::string prefix = PromptOf(part);
      // Without its own generation header.
      const size_t header = prefix.rfind(kAssistantString);
      ASSERT_NE(header, std::string::npos);
      prefix.resize(header);
      ASSERT_TRUE(prompt.starts_with(prefix)) << "seed " << seed << "\n"
                                              << prompt << "\n"
                                              << prefix;
    }
  }
}

TEST(Renderer, TurnsRenderedLaterContinueTheEarlierPrompt) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const GrowingConversation growing(seed);
    Conversation whole = growing.whole();
    NormalizeTurns(&whole);
    if (whole.form == PromptForm::kV4) continue;
    const std::string prompt = PromptOf(whole);
    for (size_t first = 1; first < whole.turns.size(); ++first) {
      const std::string rest = PromptOf(whole, {.first_turn = first});
      EXPECT_TRUE(prompt.ends_with(rest)) << "seed " << seed;
      EXPECT_LT(rest.size(), prompt.size());
    }
  }
}

}  // namespace
}  // namespace deepinfer
