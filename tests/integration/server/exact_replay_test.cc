// Turns with tool calls that come back re-serialised: the prompt of the next round begins with the
// tokens of this one, in every dialect (api.md §7).
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "integration/server/server_fixture.h"
#include "text/special_tokens.h"

namespace deepinfer {
namespace {

using namespace testing;  // NOLINT: the helpers of this folder

// What a client sends back for the arguments that were sampled.
constexpr std::string_view kReserialised = R"({"a":{"m":[2,3],"n":1},"b":"x"})";
constexpr std::string_view kChanged = R"({"a":{"m":[2,3],"n":1},"b":"y"})";

class ExactReplayTest : public ServerTest {
 protected:
  ExactReplayTest() : ServerTest(/*context=*/4096) {
    // Reasoning, a text and a call, each character a token of its own.
    const std::string_view text =
        "Why?</think>Now.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n"
        "<｜DSML｜ parameter name=\"b\" string=\"true\">x</｜DSML｜ parameter>\n"
        "<｜DSML｜ parameter name=\"a\" string=\"false\">{\"n\":1.0,  \"m\": [2,3]}"
        "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
    for (size_t at = 0; at < text.size();) {
      size_t size = 1;
      for (const std::string_view token : {kThinkEndString, kDsmlString}) {
        if (text.substr(at).starts_with(token)) size = token.size();
      }
      const std::vector<int32_t> ids = Encode(text.substr(at, size));
      sampled_.insert(sampled_.end(), ids.begin(), ids.end());
      at += size;
    }
    worker_->SetOutput(sampled_);
  }

  static json::object Schema() { return {{"type", "object"}}; }

  // Whether the last prompt begins with the one before it and its answer.
  bool LastPromptGoesOn() {
    const std::vector<EngineRequest> requests = worker_->submitted();
    std::vector<int32_t> expected = requests[requests.size() - 2].prompt_ids;
    expected.insert(expected.end(), sampled_.begin(), sampled_.end());
    expected.push_back(1);
    const std::vector<int32_t>& prompt = requests.back().prompt_ids;
    return prompt.size() > expected.size() &&
           std::equal(expected.begin(), expected.end(), prompt.begin());
  }

  // Two rounds of chat; `change` makes the client's copy of the message, `more` joins the second
  // body.
  bool ChatGoesOn(const std::function<void(json::object*)>& change, const json::object& more = {}) {
    json::object body = ChatBody(
        {{"thinking", {{"type", "enabled"}}},
         {"tools",
          {{{"type", "function"}, {"function", {{"name", "f"}, {"parameters", Schema()}}}}}}});
    const json::value answer = ParseBody(Post("/v1/chat/completions", body));
    json::object message = answer.at("choices").at(0).at("message").as_object();
    const std::string id(message["tool_calls"].at(0).at("id").as_string());
    change(&message);
    body["messages"].as_array().push_back(message);
    body["messages"].as_array().push_back(
        {{"role", "tool"}, {"tool_call_id", id}, {"content", "sunny"}});
    for (const auto& member : more) body[member.key()] = member.value();
    EXPECT_EQ(Post("/v1/chat/completions", body).status, 200);
    return LastPromptGoesOn();
  }

  static void SetArguments(json::object* message, std::string_view arguments) {
    (*message)["tool_calls"].at(0).at("function").as_object()["arguments"] = arguments;
  }

  std::vector<int32_t> sampled_;
};

TEST_F(ExactReplayTest, ChatGoesOnBehindReserialisedArguments) {
  Start();
  EXPECT_TRUE(ChatGoesOn([](json::object* message) { SetArguments(message, kReserialised); }));
  // Agents drop the reasoning too.
  EXPECT_TRUE(ChatGoesOn([](json::object* message) {
    SetArguments(message, kReserialised);
    message->erase("reasoning_content");
  }));
  EXPECT_EQ(Metric("deepinfer:exact_replay_turns_total"), 2);
}

TEST_F(ExactReplayTest, AChangedTurnIsTheClients) {
  Start();
  EXPECT_FALSE(ChatGoesOn([](json::object* message) { SetArguments(message, kChanged); }));
  const std::vector<int32_t>& prompt = worker_->submitted().back().prompt_ids;
  EXPECT_NE(tokenizer_->Decode(prompt).find("string=\"true\">y</"), std::string::npos);
  EXPECT_FALSE(ChatGoesOn([](json::object* message) {
    SetArguments(message, kReserialised);
    (*message)["content"] = "Then.";
  }));
}

TEST_F(ExactReplayTest, AnotherUserDoesNotGetTheTurn) {
  Start();
  const auto reserialise = [](json::object* message) { SetArguments(message, kReserialised); };
  EXPECT_FALSE(ChatGoesOn(reserialise, {{"user", "somebody else"}}));
  EXPECT_TRUE(ChatGoesOn(reserialise));
}

// Else a small body would hold the memory of as many long turns as it has messages.
TEST_F(ExactReplayTest, RestoresEachTurnOnceAndNoMoreThanTheContextHolds) {
  Start();
  json::array rounds;
  const auto add_round = [&](json::object* message) {
    SetArguments(message, kReserialised);
    rounds.push_back(*message);
    rounds.push_back({{"role", "tool"},
                      {"tool_call_id", (*message)["tool_calls"].at(0).at("id")},
                      {"content", "sunny"}});
  };
  const auto post = [&](size_t times) {
    json::object body =
        ChatBody({{"thinking", {{"type", "enabled"}}},
                  {"tools", {{{"type", "function"}, {"function", {{"name", "f"}}}}}}});
    for (; times > 0; --times) {
      for (const json::value& message : rounds) body["messages"].as_array().push_back(message);
    }
    return Post("/v1/chat/completions", body).status;
  };
  ASSERT_TRUE(ChatGoesOn(add_round));
  const double before = Metric("deepinfer:exact_replay_turns_total");
  EXPECT_EQ(post(3), 200);
  EXPECT_EQ(Metric("deepinfer:exact_replay_turns_total"), before + 1);

  const size_t fitting = 4096 / sampled_.size();
  while (rounds.size() / 2 < fitting + 2) ASSERT_TRUE(ChatGoesOn(add_round));
  const double all = Metric("deepinfer:exact_replay_turns_total");
  EXPECT_EQ(post(1), 400);
  EXPECT_LE(Metric("deepinfer:exact_replay_turns_total"), all + static_cast<double>(fitting));
}

TEST_F(ExactReplayTest, CanBeSwitchedOff) {
  options_.exact_replay = false;
  Start();
  EXPECT_FALSE(ChatGoesOn([](json::object* message) { SetArguments(message, kReserialised); }));
}

// The block is not closed, but the model ended its turn: the next prompt holds what was sampled.
TEST_F(ExactReplayTest, AMalformedTurnIsReplayedAsItIs) {
  Start();
  sampled_.pop_back();
  worker_->SetOutput(sampled_);
  EXPECT_TRUE(ChatGoesOn([](json::object* message) { SetArguments(message, kReserialised); }));
}

TEST_F(ExactReplayTest, ATurnThatTheLimitCutIsNotKept) {
  Start();
  worker_->SetOutput(sampled_, /*endless=*/true);
  EXPECT_FALSE(ChatGoesOn([](json::object* message) { SetArguments(message, kReserialised); },
                          {{"max_tokens", 10}}));
  EXPECT_EQ(Metric("deepinfer:exact_replay_turns_total"), -1);
}

TEST_F(ExactReplayTest, RenderAndCountsAreThoseOfTheNextRound) {
  Start();
  ASSERT_TRUE(ChatGoesOn([](json::object* message) { SetArguments(message, kReserialised); }));
  const size_t num_tokens = worker_->submitted().back().prompt_ids.size();
  // The same conversation once more, by its last body.
  json::object body;
  ASSERT_TRUE(ChatGoesOn([&](json::object* message) {
    SetArguments(message, kReserialised);
    body = ChatBody(
        {{"thinking", {{"type", "enabled"}}},
         {"tools",
          {{{"type", "function"}, {"function", {{"name", "f"}, {"parameters", Schema()}}}}}}});
    body["messages"].as_array().push_back(*message);
    body["messages"].as_array().push_back(
        {{"role", "tool"},
         {"tool_call_id", (*message)["tool_calls"].at(0).at("id")},
         {"content", "sunny"}});
  }));
  const json::value rendered = ParseBody(Post("/v1/chat/completions/render", body));
  EXPECT_EQ(rendered.at("num_tokens").as_int64(), static_cast<int64_t>(num_tokens));
  EXPECT_NE(std::string(rendered.at("prompt").as_string()).find("{\"n\":1.0,  \"m\": [2,3]}"),
            std::string::npos);
  EXPECT_EQ(ParseBody(Post("/tokenize", body)).at("count").as_int64(),
            static_cast<int64_t>(num_tokens));
}

TEST_F(ExactReplayTest, MessagesGoOn) {
  Start();
  json::object body{{"model", kModel},
                    {"max_tokens", 300},
                    {"messages", {{{"role", "user"}, {"content", "Hi"}}}},
                    {"thinking", {{"type", "enabled"}}},
                    {"tools", {{{"name", "f"}, {"input_schema", Schema()}}}}};
  for (const bool keeps_thinking : {true, false}) {
    json::object next = body;
    const json::value answer = ParseBody(Post("/v1/messages", body));
    json::array content = answer.at("content").as_array();
    json::object& call = content.back().as_object();
    call["input"] = json::parse(kReserialised);
    const std::string id(call["id"].as_string());
    if (!keeps_thinking) content.erase(content.begin());
    json::array& messages = next["messages"].as_array();
    messages.push_back({{"role", "assistant"}, {"content", content}});
    messages.push_back(
        {{"role", "user"},
         {"content", {{{"type", "tool_result"}, {"tool_use_id", id}, {"content", "sunny"}}}}});
    EXPECT_EQ(Post("/v1/messages", next).status, 200);
    EXPECT_TRUE(LastPromptGoesOn()) << keeps_thinking;
    const json::value count = ParseBody(Post("/v1/messages/count_tokens", next));
    EXPECT_EQ(count.at("input_tokens").as_int64(),
              static_cast<int64_t>(worker_->submitted().back().prompt_ids.size()));
  }
}

TEST_F(ExactReplayTest, ResponsesGoOn) {
  Start();
  json::object body{{"model", kModel},
                    {"input", {{{"role", "user"}, {"content", "Hi"}}}},
                    {"tools", {{{"type", "function"}, {"name", "f"}, {"parameters", Schema()}}}}};
  for (const bool keeps_reasoning : {true, false}) {
    json::object next = body;
    const json::value answer = ParseBody(Post("/v1/responses", body));
    json::array output = answer.at("output").as_array();
    json::object& call = output.back().as_object();
    call["arguments"] = kReserialised;
    const json::value id = call["call_id"];
    if (!keeps_reasoning) output.erase(output.begin());
    json::array& input = next["input"].as_array();
    for (const json::value& item : output) input.push_back(item);
    input.push_back({{"type", "function_call_output"}, {"call_id", id}, {"output", "sunny"}});
    EXPECT_EQ(Post("/v1/responses", next).status, 200);
    EXPECT_TRUE(LastPromptGoesOn()) << keeps_reasoning;
  }
}

TEST_F(ExactReplayTest, AStreamedTurnIsKeptBeforeItsEndIsSent) {
  Start();
  for (const int32_t commit : {1, 3, 0}) {
    worker_->SetCommit(commit);
    json::object body =
        ChatBody({{"stream", true},
                  {"thinking", {{"type", "enabled"}}},
                  {"tools", {{{"type", "function"}, {"function", {{"name", "f"}}}}}}});
    std::string id;
    for (const json::value& event : ParseEvents(Post("/v1/chat/completions", body))) {
      const json::object& delta = event.at("choices").at(0).at("delta").as_object();
      const json::value* calls = delta.if_contains("tool_calls");
      if (calls != nullptr && calls->at(0).as_object().contains("id")) {
        id = calls->at(0).at("id").as_string();
      }
    }
    json::array& messages = body["messages"].as_array();
    messages.push_back({{"role", "assistant"},
                        {"content", "Now."},
                        {"tool_calls",
                         {{{"id", id},
                           {"type", "function"},
                           {"function", {{"name", "f"}, {"arguments", kReserialised}}}}}}});
    messages.push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", "sunny"}});
    EXPECT_EQ(Post("/v1/chat/completions", body).status, 200);
    EXPECT_TRUE(LastPromptGoesOn()) << commit;
  }
}

}  // namespace
}  // namespace deepinfer
