#include "server/completions_response.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "unit/server/response_test_util.h"

namespace deepinfer {
namespace {

namespace json = boost::json;
using testing::Answer;
using testing::EventsOf;
using testing::Script;
using testing::ScriptOf;

CompletionsResponseOptions Options(std::string_view prompt) {
  CompletionsResponseOptions options;
  options.id = "cmpl-1";
  options.model = "tiny";
  options.system_fingerprint = "deepinfer-test";
  options.created_s = 1234;
  std::vector<int32_t> ids = {0};
  for (int32_t id : testing::Encode(testing::ReleasedTokenizer(), prompt)) ids.push_back(id);
  options.prompts = {ids};
  options.num_hidden_prompt_tokens = 1;
  return options;
}

Answer Complete(CompletionsResponseOptions options, const std::vector<Script>& scripts,
                size_t group, bool stream) {
  options.stream = stream;
  CompletionsResponse response(testing::ReleasedTokenizer(), options);
  std::vector<std::vector<TokenEvent>> events;
  for (const Script& script : scripts) events.push_back(EventsOf(script, group));
  return testing::Play(&response, events, stream);
}

std::string Text(const Answer& answer, size_t choice = 0) {
  return std::string(answer.body.at("choices").at(choice).at("text").as_string());
}

std::string StreamedText(const Answer& answer, int64_t choice_index) {
  std::string text;
  for (const json::value& chunk : answer.chunks) {
    for (const json::value& choice : chunk.at("choices").as_array()) {
      if (choice.at("index").as_int64() == choice_index) text += choice.at("text").as_string();
    }
  }
  return text;
}

TEST(CompletionsResponseTest, TextIsWhatTheModelWroteMarkersIncluded) {
  const std::string text = "\n\nfree text</think> <｜DSML｜ calls> 🦜";
  for (size_t group : {size_t{1}, size_t{3}, size_t{100}}) {
    const Answer answer = Complete(Options("p"), {ScriptOf(text)}, group, true);
    EXPECT_EQ(Text(answer), text);
    EXPECT_EQ(StreamedText(answer, 0), text);
    EXPECT_EQ(answer.body.at("object"), "text_completion");
    EXPECT_EQ(answer.body.at("choices").at(0).at("finish_reason"), "stop");
  }
}

TEST(CompletionsResponseTest, StopStringEndsText) {
  CompletionsResponseOptions options = Options("p");
  options.stop_strings = {"END"};
  const Answer answer = Complete(options, {ScriptOf("one END two")}, 1, true);
  EXPECT_EQ(Text(answer), "one ");
  EXPECT_EQ(answer.progress[0], ChoiceProgress::kStopped);
  EXPECT_EQ(answer.body.at("choices").at(0).at("stop_reason"), "END");
  options.include_stop_string = true;
  EXPECT_EQ(Text(Complete(options, {ScriptOf("one END two")}, 1, true)), "one END");
}

TEST(CompletionsResponseTest, ChoicesOfSeveralPromptsAreNumberedThroughAndUsageIsTheSum) {
  CompletionsResponseOptions options = Options("p");
  options.prompts.push_back({0, 7, 8});
  options.choices_per_prompt = 2;
  options.include_usage = true;
  const std::vector<Script> scripts = {ScriptOf("a"), ScriptOf("b"), ScriptOf("c"), ScriptOf("d")};
  const Answer answer = Complete(options, scripts, 1, true);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(answer.body.at("choices").at(i).at("index").as_int64(), static_cast<int64_t>(i));
    EXPECT_EQ(Text(answer, i), std::string(1, static_cast<char>('a' + i)));
    EXPECT_EQ(StreamedText(answer, static_cast<int64_t>(i)), Text(answer, i));
  }
  const json::value& usage = answer.body.at("usage");
  // Two prompts of 11 tokens, each counted once; four choices of one token and an end token.
  EXPECT_EQ(usage.at("prompt_tokens").as_int64(), 22);
  EXPECT_EQ(usage.at("prompt_cache_hit_tokens").as_int64(), 16);
  EXPECT_EQ(usage.at("completion_tokens").as_int64(), 8);
  EXPECT_EQ(answer.chunks.back().at("usage"), usage);
  EXPECT_TRUE(answer.chunks.back().at("choices").as_array().empty());
}

TEST(CompletionsResponseTest, TheLikeliestOfSeveralChoicesAreTheAnswer) {
  CompletionsResponseOptions options = Options("p");
  options.prompts.push_back({0, 7, 8});
  options.choices_per_prompt = 3;
  options.answers_per_prompt = 2;
  CompletionsResponse response(testing::ReleasedTokenizer(), options);
  // Sums would prefer short answers: the second of each prompt has the best mean.
  const std::vector<std::vector<float>> logprobs = {{-2}, {-1, -1, -1},       {NAN},
                                                    {-3}, {-1.5, -1.5, -1.5}, {-2, -2}};
  std::vector<std::string> chunks;
  for (size_t i = 0; i < logprobs.size(); ++i) {
    TokenEvent event;
    for (const float logprob : logprobs[i]) {
      event.ids.push_back(
          testing::Encode(testing::ReleasedTokenizer(), std::string(1, static_cast<char>('a' + i)))
              .front());
      event.logprobs.emplace_back().logprob = logprob;
    }
    event.finish = FinishReason::kLength;
    response.OnEvent(static_cast<int32_t>(i), event, &chunks);
  }
  ASSERT_TRUE(response.done());
  const json::value body = json::parse(response.Body(nullptr));
  std::vector<std::string> texts;
  for (const json::value& choice : body.at("choices").as_array()) {
    EXPECT_EQ(choice.at("index").as_int64(), static_cast<int64_t>(texts.size()));
    EXPECT_TRUE(choice.at("logprobs").is_null());
    texts.emplace_back(choice.at("text").as_string());
  }
  EXPECT_EQ(texts, (std::vector<std::string>{"bbb", "a", "eee", "ff"}));
}

TEST(CompletionsResponseTest, LogprobListsAreParallelAndStreamLikeTheBody) {
  CompletionsResponseOptions options = Options("p");
  options.logprobs = true;
  Script script = ScriptOf("say 🦜 now");
  script.logprobs = true;
  for (size_t group : {size_t{1}, size_t{4}, size_t{100}}) {
    const Answer answer = Complete(options, {script}, group, true);
    const json::value& logprobs = answer.body.at("choices").at(0).at("logprobs");
    for (const char* key : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
      const json::array& list = logprobs.at(key).as_array();
      EXPECT_EQ(list.size(), script.ids.size() + 1) << key;  // and the end token
      json::array streamed;
      for (const json::value& chunk : answer.chunks) {
        const json::value& part = chunk.at("choices").at(0).at("logprobs");
        if (part.is_null()) continue;
        for (const json::value& entry : part.at(key).as_array()) streamed.push_back(entry);
      }
      EXPECT_EQ(json::value(streamed), json::value(list)) << key;
    }
    for (size_t i = 0; i < script.ids.size(); ++i) {
      const auto bytes = testing::ReleasedTokenizer().TokenBytes(script.ids[i]);
      const std::string token(logprobs.at("tokens").at(i).as_string());
      if (token.substr(0, 6) == "bytes:") {
        EXPECT_EQ(token.size(), 6 + 4 * bytes.size());
      } else {
        EXPECT_EQ(token, bytes);
      }
      EXPECT_TRUE(logprobs.at("top_logprobs").at(i).as_object().contains(token));
    }
    // "say" and the blank are 4 code points, the bird is one however many tokens it takes.
    EXPECT_EQ(logprobs.at("text_offset").at(0).as_int64(), 0);
    const json::array& offsets = logprobs.at("text_offset").as_array();
    EXPECT_EQ(offsets.at(script.ids.size() - 1).as_int64(), 5);
  }
}

TEST(CompletionsResponseTest, EchoGivesThePromptAndItsLogprobs) {
  CompletionsResponseOptions options = Options("one two");
  options.echo = true;
  options.logprobs = true;
  const std::vector<int32_t>& prompt = options.prompts[0];
  Script script{testing::Encode(testing::ReleasedTokenizer(), " three"), FinishReason::kLength};
  script.ids.resize(1);
  script.logprobs = true;
  std::vector<TokenEvent> events = EventsOf(script, 1);
  for (size_t i = 1; i < prompt.size(); ++i) {
    events[0].prompt_logprobs.push_back(testing::FakeLogprobs(prompt[i], 1));
  }
  CompletionsResponse response(testing::ReleasedTokenizer(), options);
  const Answer answer = testing::Play(&response, {events}, false);
  EXPECT_EQ(Text(answer).substr(0, 7), "one two");
  const json::value& logprobs = answer.body.at("choices").at(0).at("logprobs");
  // The hidden begin token is not listed; the first value has no predecessor the client sees.
  EXPECT_EQ(logprobs.at("tokens").as_array().size(), prompt.size() - 1 + 1);
  EXPECT_TRUE(logprobs.at("token_logprobs").at(0).is_null());
  EXPECT_TRUE(logprobs.at("top_logprobs").at(0).is_null());
  for (size_t i = 2; i < prompt.size(); ++i) {
    EXPECT_EQ(logprobs.at("token_logprobs").at(i - 1).to_number<float>(),
              testing::FakeLogprob(prompt[i], 0));
  }
  EXPECT_EQ(logprobs.at("text_offset").at(1).as_int64(), 3);
}

TEST(CompletionsResponseTest, DeadlineIsAFinishReasonOnlyInTheMiddleOfAStream) {
  const Script script = ScriptOf("abc def", FinishReason::kDeadline);
  EXPECT_EQ(Complete(Options("p"), {script}, 1, false).progress[0], ChoiceProgress::kFailed);
  const Answer stream = Complete(Options("p"), {script}, 1, true);
  EXPECT_EQ(stream.chunks.back().at("choices").at(0).at("finish_reason"),
            "insufficient_system_resource");
}

}  // namespace
}  // namespace deepinfer
