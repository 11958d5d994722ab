#include "server/chat_response.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "unit/server/response_test_util.h"
#include "unit/server/stream_events.h"

namespace deepinfer {
namespace {

namespace json = boost::json;
using testing::Answer;
using testing::Block;
using testing::EventsOf;
using testing::Invoke;
using testing::JoinedEvent;
using testing::Parameter;
using testing::Script;
using testing::ScriptOf;
using testing::Thinking;
using testing::WithStops;
using testing::WithTools;

ChatResponseOptions Options(const ParserSettings& parser) {
  ChatResponseOptions options;
  options.id = "chatcmpl-1";
  options.model = "tiny";
  options.system_fingerprint = "deepinfer-test";
  options.created_s = 1234;
  options.parser = testing::WithIds(parser);
  options.thinking = parser.start == ParserStart::kReasoningStart;
  return options;
}

Answer Generate(ChatResponseOptions options, const std::vector<Script>& scripts, size_t group,
                bool stream) {
  options.stream = stream;
  options.num_choices = static_cast<int32_t>(scripts.size());
  ChatResponse response(testing::ReleasedTokenizer(), options);
  std::vector<std::vector<TokenEvent>> events;
  for (const Script& script : scripts) events.push_back(EventsOf(script, group));
  return testing::Play(&response, events, stream);
}

std::vector<JoinedEvent> Joined(const Answer& answer) {
  std::vector<JoinedEvent> joined;
  for (const json::value& chunk : answer.chunks) testing::AddChunk(chunk, &joined);
  return joined;
}

std::string Text(const json::value& value) { return std::string(value.as_string()); }

const json::value& Message(const Answer& answer, size_t choice = 0) {
  return answer.body.at("choices").at(choice).at("message");
}

// Puts the deltas of one choice together as a client library does.
struct Accumulated {
  std::string content;
  std::string reasoning;
  std::vector<ChatToolCall> calls;
  std::string finish_reason;
  int num_finish_chunks = 0;
  int num_roles = 0;
};

Accumulated Accumulate(const Answer& answer, int64_t choice_index) {
  Accumulated sum;
  for (const json::value& chunk : answer.chunks) {
    for (const json::value& choice : chunk.at("choices").as_array()) {
      if (choice.at("index").as_int64() != choice_index) continue;
      const json::object& delta = choice.at("delta").as_object();
      if (delta.contains("role")) ++sum.num_roles;
      const auto add = [&](std::string_view key, std::string* to) {
        const json::value* text = delta.if_contains(key);
        if (text != nullptr && text->is_string()) *to += text->as_string();
      };
      add("content", &sum.content);
      add("reasoning_content", &sum.reasoning);
      if (const json::value* calls = delta.if_contains("tool_calls")) {
        for (const json::value& call : calls->as_array()) {
          const auto index = static_cast<size_t>(call.at("index").as_int64());
          if (call.as_object().contains("id")) {
            EXPECT_EQ(index, sum.calls.size());
            sum.calls.push_back({Text(call.at("id")), Text(call.at("function").at("name")), {}});
          }
          sum.calls.at(index).arguments += Text(call.at("function").at("arguments"));
        }
      }
      if (!choice.at("finish_reason").is_null()) {
        ++sum.num_finish_chunks;
        sum.finish_reason = Text(choice.at("finish_reason"));
        EXPECT_TRUE(delta.empty());
      }
    }
  }
  return sum;
}

const std::vector<size_t> kGroups = {1, 2, 3, 5, 8, 1000};

TEST(ChatResponseTest, StreamAndBodySayTheSame) {
  const std::string text = "think 🦜\n</think>\n\nsay 뷁\n\n" +
                           Block(Invoke("f", Parameter("a", true, "x\ny")) + "\n" +
                                 Invoke("g", Parameter("b", false, "[1, 2]")));
  for (size_t group : kGroups) {
    const Answer answer = Generate(Options(WithTools(Thinking())), {ScriptOf(text)}, group, true);
    const Accumulated sum = Accumulate(answer, 0);
    const json::value& message = Message(answer);
    EXPECT_EQ(sum.content, "say 뷁");
    EXPECT_EQ(sum.reasoning, "think 🦜");
    EXPECT_EQ(message.at("content").as_string(), sum.content);
    EXPECT_EQ(message.at("reasoning_content").as_string(), sum.reasoning);
    ASSERT_EQ(sum.calls.size(), 2u);
    for (size_t i = 0; i < 2; ++i) {
      const json::value& call = message.at("tool_calls").at(i);
      EXPECT_EQ(Text(call.at("id")), sum.calls[i].id);
      EXPECT_EQ(call.at("function").at("name").as_string(), sum.calls[i].name);
      EXPECT_EQ(call.at("function").at("arguments").as_string(), sum.calls[i].arguments);
    }
    EXPECT_EQ(sum.finish_reason, "tool_calls");
    EXPECT_EQ(answer.body.at("choices").at(0).at("finish_reason"), "tool_calls");
    EXPECT_EQ(sum.num_roles, 1);
  }
}

TEST(ChatResponseTest, BodyHasTheDocumentedFields) {
  const Answer answer = Generate(Options(Thinking()), {ScriptOf("r</think>c")}, 3, false);
  EXPECT_EQ(testing::Keys(answer.body),
            (std::vector<std::string>{"choices", "created", "id", "model", "object",
                                      "system_fingerprint", "usage"}));
  EXPECT_EQ(answer.body.at("object"), "chat.completion");
  const json::value& choice = answer.body.at("choices").at(0);
  EXPECT_EQ(testing::Keys(choice), (std::vector<std::string>{"finish_reason", "index", "logprobs",
                                                             "message", "stop_reason"}));
  EXPECT_TRUE(choice.at("stop_reason").is_null());
  EXPECT_EQ(testing::Keys(Message(answer)),
            (std::vector<std::string>{"content", "reasoning_content", "refusal", "role"}));
  const Answer plain = Generate(Options({}), {ScriptOf("c")}, 3, false);
  EXPECT_FALSE(Message(plain).as_object().contains("reasoning_content"));
}

TEST(ChatResponseTest, ReasoningFieldNamesFollowTheOption) {
  ChatResponseOptions options = Options(Thinking());
  options.reasoning_field = ReasoningField::kReasoning;
  const Answer one = Generate(options, {ScriptOf("r</think>c")}, 3, true);
  EXPECT_EQ(Message(one).at("reasoning"), "r");
  EXPECT_FALSE(Message(one).as_object().contains("reasoning_content"));
  options.reasoning_field = ReasoningField::kBoth;
  const Answer both = Generate(options, {ScriptOf("r</think>c")}, 3, true);
  EXPECT_EQ(Message(both).at("reasoning"), "r");
  EXPECT_EQ(Message(both).at("reasoning_content"), "r");
  EXPECT_EQ(both.chunks.at(1).at("choices").at(0).at("delta").at("reasoning"), "r");
}

TEST(ChatResponseTest, FirstChunkComesWithTheFirstToken) {
  ChatResponseOptions options = Options(Thinking());
  options.stream = true;
  ChatResponse response(testing::ReleasedTokenizer(), options);
  std::vector<std::string> chunks;
  EXPECT_EQ(response.OnEvent(0, TokenEvent(), &chunks), ChoiceProgress::kRunning);
  EXPECT_TRUE(chunks.empty());
  // The first token is a newline that never shows: the role chunk comes nevertheless.
  TokenEvent event;
  event.ids = testing::Encode(testing::ReleasedTokenizer(), "\n");
  response.OnEvent(0, event, &chunks);
  ASSERT_EQ(chunks.size(), 1u);
  EXPECT_EQ(json::serialize(json::parse(chunks[0]).at("choices").at(0).at("delta")),
            R"({"role":"assistant","content":null,"reasoning_content":""})");
}

TEST(ChatResponseTest, ChoicesStartInOrderWhateverComesFirst) {
  std::vector<Script> scripts = {ScriptOf("first answer"), ScriptOf("second answer"),
                                 ScriptOf("third answer")};
  const Answer answer = Generate(Options({}), scripts, 1, true);
  int64_t num_started = 0;
  for (const json::value& chunk : answer.chunks) {
    const int64_t index = chunk.at("choices").at(0).at("index").as_int64();
    ASSERT_LE(index, num_started);
    num_started = std::max(num_started, index + 1);
  }
  EXPECT_EQ(Accumulate(answer, 2).content, "third answer");
}

TEST(ChatResponseTest, StopStringEndsTheChoiceBeforeTheEngineDoes) {
  for (size_t group : kGroups) {
    const Answer answer =
        Generate(Options(WithStops({"END"})), {ScriptOf("one END two three four")}, group, true);
    EXPECT_EQ(Accumulate(answer, 0).content, "one ");
    const json::value& choice = answer.body.at("choices").at(0);
    EXPECT_EQ(choice.at("finish_reason"), "stop");
    EXPECT_EQ(choice.at("stop_reason"), "END");
    EXPECT_NE(answer.progress[0], ChoiceProgress::kRunning);
    if (group == 1) {
      EXPECT_EQ(answer.progress[0], ChoiceProgress::kStopped);
    }
    // Tokens behind the one that completed the stop string do not count, whatever the steps.
    const auto ids = testing::Encode(testing::ReleasedTokenizer(), "one END");
    EXPECT_EQ(answer.body.at("usage").at("completion_tokens").as_int64(),
              static_cast<int64_t>(ids.size()));
  }
}

TEST(ChatResponseTest, StopTokenOfTheRequestIsTheStopReason) {
  Script script = ScriptOf("abc");
  std::vector<TokenEvent> events = EventsOf(script, 100);
  events.back().ids.back() = 223;
  events.back().stop_token_id = 223;
  ChatResponse response(testing::ReleasedTokenizer(), Options({}));
  const Answer answer = testing::Play(&response, {events}, false);
  EXPECT_EQ(Message(answer).at("content"), "abc");
  EXPECT_EQ(answer.body.at("choices").at(0).at("stop_reason").as_int64(), 223);
}

TEST(ChatResponseTest, IgnoredEndTokensCountAndNeverShow) {
  std::vector<int32_t> ids = testing::Encode(testing::ReleasedTokenizer(), "ab");
  const size_t num_ids = ids.size();
  ids.insert(ids.begin() + 1, testing::kEosId);
  Script script{ids, FinishReason::kLength, true};
  ChatResponseOptions options = Options({});
  options.logprobs = true;
  const Answer answer = Generate(options, {script}, 2, true);
  EXPECT_EQ(Message(answer).at("content"), "ab");
  EXPECT_EQ(answer.body.at("usage").at("completion_tokens").as_int64(),
            static_cast<int64_t>(num_ids) + 1);
  EXPECT_EQ(answer.body.at("choices").at(0).at("logprobs").at("content").as_array().size(),
            num_ids);
}

TEST(ChatResponseTest, EndsThatAreNoFinishReasonFail) {
  for (FinishReason finish : {FinishReason::kError, FinishReason::kCancelled}) {
    const Answer answer = Generate(Options({}), {ScriptOf("abc", finish)}, 1, true);
    EXPECT_EQ(answer.progress[0], ChoiceProgress::kFailed);
    EXPECT_EQ(Accumulate(answer, 0).num_finish_chunks, 0);
  }
  // A deadline is an error before the stream began and a finish reason in its middle.
  const Answer body =
      Generate(Options({}), {ScriptOf("abc def", FinishReason::kDeadline)}, 1, false);
  EXPECT_EQ(body.progress[0], ChoiceProgress::kFailed);
  const Answer stream =
      Generate(Options({}), {ScriptOf("abc def", FinishReason::kDeadline)}, 1, true);
  EXPECT_EQ(Accumulate(stream, 0).finish_reason, "insufficient_system_resource");
}

TEST(ChatResponseTest, LengthStaysEvenWithCalls) {
  const Answer answer = Generate(
      Options(WithTools()),
      {ScriptOf("<｜DSML｜ calls>\n" + Invoke("f", "") + "\n<｜DSML｜ invoke name=\"g\">\n",
                FinishReason::kLength)},
      2, true);
  EXPECT_EQ(Accumulate(answer, 0).finish_reason, "length");
  EXPECT_EQ(Message(answer).at("tool_calls").as_array().size(), 2u);
  EXPECT_EQ(Message(answer).at("tool_calls").at(1).at("function").at("arguments"), "");
}

TEST(ChatResponseTest, CallIdsAreWellFormedAndDiffer) {
  std::set<std::string> seen;
  for (int32_t i = 0; i < 200; ++i) {
    const std::string id = NewToolCallId(i % 12);
    EXPECT_EQ(id.size(), 8u + 24u);
    EXPECT_EQ(id.substr(0, 8), i % 12 < 10 ? "call_0" + std::to_string(i % 12) + "_"
                                           : "call_" + std::to_string(i % 12) + "_");
    EXPECT_EQ(
        id.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_"),
        std::string::npos);
    EXPECT_TRUE(seen.insert(id).second);
  }
}

TEST(ChatResponseTest, LongArgumentsStayBelowTheFragmentLimitOfClients) {
  const Tokenizer& tokenizer = testing::ReleasedTokenizer();
  Script script = ScriptOf(
      "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"a\" "
      "string=\"true\">");
  const int32_t word = testing::Encode(tokenizer, "word").at(0);
  constexpr size_t kNumWords = 70000;
  script.ids.insert(script.ids.end(), kNumWords, word);
  const auto closing = testing::EncodeWithSpecials(
      tokenizer, "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>");
  script.ids.insert(script.ids.end(), closing.begin(), closing.end());
  const Answer answer = Generate(Options(WithTools()), {script}, 1, true);
  size_t num_fragments = 0;
  for (const json::value& chunk : answer.chunks) {
    if (chunk.at("choices").at(0).at("delta").as_object().contains("tool_calls")) ++num_fragments;
  }
  EXPECT_LE(num_fragments, 65536u);
  const Accumulated sum = Accumulate(answer, 0);
  EXPECT_EQ(sum.calls.at(0).arguments.size(), std::string("{\"a\": \"\"}").size() + kNumWords * 4);
  EXPECT_EQ(Message(answer).at("tool_calls").at(0).at("function").at("arguments").as_string(),
            sum.calls[0].arguments);
}

TEST(ChatResponseTest, TokenIdsAreReturnedOnceEach) {
  ChatResponseOptions options = Options(Thinking());
  options.return_token_ids = true;
  options.prompt_ids = {0, 5, 6};
  const Script script = ScriptOf("\nr</think>\n\nc");
  const Answer answer = Generate(options, {script}, 2, true);
  std::vector<int32_t> streamed;
  for (const json::value& chunk : answer.chunks) {
    for (int32_t id : testing::ToIds(chunk.at("choices").at(0).at("token_ids"))) {
      streamed.push_back(id);
    }
  }
  std::vector<int32_t> expected = script.ids;
  expected.push_back(testing::kEosId);
  EXPECT_EQ(streamed, expected);
  EXPECT_EQ(testing::ToIds(answer.body.at("choices").at(0).at("token_ids")), expected);
  EXPECT_EQ(testing::ToIds(answer.chunks.at(0).at("prompt_token_ids")), options.prompt_ids);
  EXPECT_EQ(testing::ToIds(answer.body.at("prompt_token_ids")), options.prompt_ids);
}

// Rows A, B, D and H of the public bug reports.

TEST(ChatResponseBugCases, A03_NoEmptyContentWhileTextIsHeld) {
  for (size_t group : kGroups) {
    const Answer answer = Generate(Options(WithStops({"a b c d e f"})),
                                   {ScriptOf("start a b c d e x a b c")}, group, true);
    for (size_t i = 1; i < answer.chunks.size(); ++i) {
      const json::value& choice = answer.chunks[i].at("choices").at(0);
      if (!choice.at("finish_reason").is_null()) continue;
      EXPECT_FALSE(choice.at("delta").at("content").as_string().empty());
    }
    EXPECT_EQ(Accumulate(answer, 0).content, "start a b c d e x a b c");
  }
}

TEST(ChatResponseBugCases, A04_TextBeforeTheStopWithoutStreaming) {
  const Answer answer =
      Generate(Options(WithStops({"STOP"})), {ScriptOf("before STOP after")}, 4, false);
  EXPECT_EQ(Message(answer).at("content"), "before ");
}

TEST(ChatResponseBugCases, A07_DeltasNeverRepeatText) {
  const std::string text = "abc abc abc abc\n\nabc abc";
  for (size_t group : kGroups) {
    const Answer answer = Generate(Options({}), {ScriptOf(text)}, group, true);
    EXPECT_EQ(Accumulate(answer, 0).content, text);
    EXPECT_EQ(Text(Message(answer).at("content")), text);
  }
}

TEST(ChatResponseBugCases, A08_NoDeltaIsLostWithToolsOn) {
  const std::string text = "a < b, c </ d\n\n<e> ｜DSML｜ f\n";
  for (size_t group : kGroups) {
    EXPECT_EQ(Accumulate(Generate(Options(WithTools()), {ScriptOf(text)}, group, true), 0).content,
              text);
  }
}

TEST(ChatResponseBugCases, B01_WholeCallInTheLastStep) {
  const Answer answer = Generate(
      Options(WithTools()), {ScriptOf(Block(Invoke("f", Parameter("a", true, "x"))))}, 1000, true);
  const Accumulated sum = Accumulate(answer, 0);
  ASSERT_EQ(sum.calls.size(), 1u);
  EXPECT_EQ(sum.calls[0].arguments, "{\"a\": \"x\"}");
  EXPECT_EQ(sum.finish_reason, "tool_calls");
}

TEST(ChatResponseBugCases, B04_B06_IdTypeAndNameOnceAndAnIndexAlways) {
  const std::string text =
      Block(Invoke("f", Parameter("a", true, "some longer value")) + "\n" + Invoke("g", ""));
  for (size_t group : kGroups) {
    const Answer answer = Generate(Options(WithTools()), {ScriptOf(text)}, group, true);
    std::vector<int> num_heads(2, 0);
    for (const json::value& chunk : answer.chunks) {
      const json::object& delta = chunk.at("choices").at(0).at("delta").as_object();
      if (!delta.contains("tool_calls")) continue;
      for (const json::value& call : delta.at("tool_calls").as_array()) {
        ASSERT_TRUE(call.at("index").is_int64());
        const auto index = static_cast<size_t>(call.at("index").as_int64());
        const bool is_head = num_heads.at(index) == 0;
        EXPECT_EQ(call.as_object().contains("id"), is_head);
        EXPECT_EQ(call.as_object().contains("type"), is_head);
        EXPECT_EQ(call.at("function").as_object().contains("name"), is_head);
        ++num_heads[index];
      }
    }
    EXPECT_GE(num_heads[0], 2);
  }
}

TEST(ChatResponseBugCases, B05_B07_OneFinishChunkPerChoiceAndItIsTheLast) {
  const std::string text = "c\n\n" + Block(Invoke("f", Parameter("a", true, "x")));
  for (size_t group : kGroups) {
    const Answer answer =
        Generate(Options(WithTools()), {ScriptOf(text), ScriptOf("plain")}, group, true);
    EXPECT_EQ(Accumulate(answer, 0).num_finish_chunks, 1);
    EXPECT_EQ(Accumulate(answer, 1).num_finish_chunks, 1);
    EXPECT_EQ(Accumulate(answer, 0).finish_reason, "tool_calls");
    EXPECT_EQ(Accumulate(answer, 1).finish_reason, "stop");
    for (int64_t index : {0, 1}) {
      json::value last;
      for (const json::value& chunk : answer.chunks) {
        if (chunk.at("choices").at(0).at("index").as_int64() == index) last = chunk;
      }
      EXPECT_FALSE(last.at("choices").at(0).at("finish_reason").is_null());
    }
  }
}

TEST(ChatResponseBugCases, D01_CompletionTokensAreTheCommittedIds) {
  for (size_t num_tokens : {size_t{1}, size_t{7}, size_t{64}}) {
    const int32_t word = testing::Encode(testing::ReleasedTokenizer(), "word").at(0);
    const Script script{std::vector<int32_t>(num_tokens, word), FinishReason::kLength};
    ChatResponseOptions options = Options({});
    options.include_usage = true;
    for (size_t group : kGroups) {
      const Answer answer = Generate(options, {script}, group, true);
      EXPECT_EQ(answer.chunks.back().at("usage").at("completion_tokens").as_int64(),
                static_cast<int64_t>(num_tokens));
      EXPECT_EQ(answer.body.at("usage"), answer.chunks.back().at("usage"));
    }
    // The end token is a committed token.
    const Answer stopped = Generate(options, {{script.ids, FinishReason::kStop}}, 3, true);
    EXPECT_EQ(stopped.body.at("usage").at("completion_tokens").as_int64(),
              static_cast<int64_t>(num_tokens) + 1);
  }
}

TEST(ChatResponseBugCases, D02_ContinuousUsageGrowsToTheFinalOne) {
  ChatResponseOptions options = Options(Thinking());
  options.include_usage = true;
  options.continuous_usage = true;
  const Answer answer = Generate(
      options, {ScriptOf("some reasoning</think>an answer"), ScriptOf("r</think>c")}, 2, true);
  int64_t last = 0;
  for (const json::value& chunk : answer.chunks) {
    const json::value& usage = chunk.at("usage");
    EXPECT_EQ(usage.at("prompt_tokens").as_int64(), 11);
    EXPECT_EQ(usage.at("prompt_tokens_details").at("cached_tokens").as_int64(), 8);
    EXPECT_GE(usage.at("completion_tokens").as_int64(), last);
    last = usage.at("completion_tokens").as_int64();
  }
  EXPECT_EQ(answer.chunks.back().at("usage"), answer.body.at("usage"));
}

TEST(ChatResponseBugCases, D03_UsageChunkHasNoChoices) {
  ChatResponseOptions options = Options({});
  options.include_usage = true;
  const Answer answer = Generate(options, {ScriptOf("abc")}, 2, true);
  EXPECT_TRUE(answer.chunks.back().at("choices").as_array().empty());
  EXPECT_TRUE(answer.chunks.back().at("usage").is_object());
  for (size_t i = 0; i + 1 < answer.chunks.size(); ++i) {
    EXPECT_TRUE(answer.chunks[i].at("usage").is_null());
  }
  const Answer without = Generate(Options({}), {ScriptOf("abc")}, 2, true);
  for (const json::value& chunk : without.chunks) {
    EXPECT_FALSE(chunk.as_object().contains("usage"));
  }
  options.usage_style = StreamUsageStyle::kDeepSeek;
  const Answer deepseek = Generate(options, {ScriptOf("abc")}, 2, true);
  EXPECT_EQ(deepseek.chunks.back().at("usage"), deepseek.body.at("usage"));
  EXPECT_EQ(deepseek.chunks.back().at("choices").at(0).at("finish_reason"), "stop");
}

TEST(ChatResponseBugCases, D07_UsageHasExactlyTheDocumentedKeys) {
  ChatResponseOptions options = Options(Thinking());
  options.image_tokens = 4;
  const Answer answer = Generate(options, {ScriptOf("r r</think>c")}, 1, false);
  const json::value& usage = answer.body.at("usage");
  EXPECT_EQ(testing::Keys(usage),
            (std::vector<std::string>{"completion_tokens", "completion_tokens_details", "deepinfer",
                                      "prompt_cache_hit_tokens", "prompt_cache_miss_tokens",
                                      "prompt_tokens", "prompt_tokens_details", "total_tokens"}));
  EXPECT_EQ(testing::Keys(usage.at("prompt_tokens_details")),
            (std::vector<std::string>{"audio_tokens", "cache_write_tokens", "cached_tokens",
                                      "image_tokens", "text_tokens"}));
  EXPECT_EQ(
      testing::Keys(usage.at("completion_tokens_details")),
      (std::vector<std::string>{"accepted_prediction_tokens", "audio_tokens", "reasoning_tokens",
                                "rejected_prediction_tokens", "text_tokens"}));
  EXPECT_EQ(testing::Keys(usage.at("deepinfer")),
            (std::vector<std::string>{"cached_by_tier", "cached_tokens", "computed_tokens",
                                      "draft_accepted_tokens", "drafted_tokens", "generated_tokens",
                                      "replayed_tokens"}));
  EXPECT_EQ(usage.at("prompt_cache_hit_tokens").as_int64() +
                usage.at("prompt_cache_miss_tokens").as_int64(),
            usage.at("prompt_tokens").as_int64());
  // "r", " r", then the marker, "c" and the end token.
  EXPECT_EQ(usage.at("completion_tokens").as_int64(), 5);
  EXPECT_EQ(usage.at("completion_tokens_details").at("reasoning_tokens").as_int64(), 2);
  EXPECT_EQ(usage.at("deepinfer").at("computed_tokens").as_int64(), 5);
  EXPECT_EQ(usage.at("deepinfer").at("replayed_tokens").as_int64(), 2);
  EXPECT_EQ(usage.at("prompt_tokens_details").at("image_tokens").as_int64(), 4);
  options.usage_extension = false;
  const Answer off = Generate(options, {ScriptOf("r</think>c")}, 1, false);
  EXPECT_FALSE(off.body.at("usage").as_object().contains("deepinfer"));
}

TEST(ChatResponseBugCases, D08_DetailsArePresentWithZeros) {
  ChatResponse response(testing::ReleasedTokenizer(), Options({}));
  std::vector<TokenEvent> events = EventsOf(ScriptOf("a"), 10);
  events[0].counters = {};
  events[0].counters.prompt_tokens = 3;
  const Answer answer = testing::Play(&response, {events}, false);
  const json::value& usage = answer.body.at("usage");
  EXPECT_EQ(usage.at("prompt_tokens_details").at("cached_tokens").as_int64(), 0);
  EXPECT_EQ(usage.at("prompt_cache_hit_tokens").as_int64(), 0);
  EXPECT_EQ(usage.at("prompt_cache_miss_tokens").as_int64(), 3);
  EXPECT_EQ(usage.at("completion_tokens_details").at("reasoning_tokens").as_int64(), 0);
}

TEST(ChatResponseBugCases, H01_LogprobsWithoutAlternatives) {
  ChatResponseOptions options = Options({});
  options.logprobs = true;
  Script script = ScriptOf("two words");
  script.logprobs = true;
  script.num_top_logprobs = 0;
  const Answer answer = Generate(options, {script}, 2, false);
  const json::array& entries =
      answer.body.at("choices").at(0).at("logprobs").at("content").as_array();
  EXPECT_EQ(entries.size(), script.ids.size());
  for (const json::value& entry : entries) {
    EXPECT_TRUE(entry.at("top_logprobs").as_array().empty());
    EXPECT_TRUE(entry.at("logprob").is_number());
  }
}

TEST(ChatResponseBugCases, H02_NumbersJsonCannotWrite) {
  ChatResponseOptions options = Options({});
  options.logprobs = true;
  ChatResponse response(testing::ReleasedTokenizer(), options);
  TokenEvent event = EventsOf(ScriptOf("a"), 10)[0];
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  event.logprobs = {{nan, {{5, -infinity}, {6, nan}}}, {}};
  const Answer answer = testing::Play(&response, {{event}}, false);
  const json::value& entry = answer.body.at("choices").at(0).at("logprobs").at("content").at(0);
  EXPECT_EQ(entry.at("logprob").to_number<double>(), -9999.0);
  EXPECT_EQ(entry.at("top_logprobs").at(0).at("logprob").to_number<double>(), -9999.0);
  EXPECT_EQ(entry.at("top_logprobs").at(1).at("logprob").to_number<double>(), -9999.0);
  EXPECT_EQ(response.num_nan_logprobs(), 2);
}

TEST(ChatResponseBugCases, H03_AlternativesBelongToTheirOwnToken) {
  ChatResponseOptions options = Options(WithTools(WithStops({"zzz"}, Thinking())));
  options.logprobs = true;
  const std::string text =
      "\nthink 🦜\n</think>\n\nsay z zz 뷁\n\n" + Block(Invoke("f", Parameter("a", true, "x")));
  Script script = ScriptOf(text);
  script.logprobs = true;
  std::vector<JoinedEvent> first;
  for (size_t group : kGroups) {
    const Answer answer = Generate(options, {script}, group, true);
    const json::value& body = answer.body.at("choices").at(0).at("logprobs");
    json::array streamed[2];
    for (const JoinedEvent& event : Joined(answer)) {
      if (event.kind == "reasoning" || event.kind == "content") {
        json::array& list = streamed[event.kind == "content" ? 1 : 0];
        list.insert(list.end(), event.logprobs.begin(), event.logprobs.end());
      }
    }
    EXPECT_EQ(json::value(streamed[0]), body.at("reasoning_content"));
    EXPECT_EQ(json::value(streamed[1]), body.at("content"));
    for (const json::array& list : streamed) {
      EXPECT_FALSE(list.empty());
      for (const json::value& entry : list) {
        EXPECT_EQ(entry.at("logprob"), entry.at("top_logprobs").at(0).at("logprob"));
        EXPECT_EQ(entry.at("token"), entry.at("top_logprobs").at(0).at("token"));
      }
    }
    // Visible bytes are those of the listed tokens: no marker, no dropped newline, no tool markup.
    const auto bytes_of = [](const json::array& list) {
      std::string bytes;
      for (const json::value& entry : list) {
        for (const json::value& byte : entry.at("bytes").as_array()) {
          bytes += static_cast<char>(byte.to_number<int>());
        }
      }
      return bytes;
    };
    EXPECT_EQ(bytes_of(streamed[0]), "think 🦜");
    EXPECT_EQ(bytes_of(streamed[1]), "say z zz 뷁");
    if (first.empty()) first = Joined(answer);
    std::vector<JoinedEvent> joined = Joined(answer);
    EXPECT_EQ(joined, first);
  }
}

}  // namespace
}  // namespace deepinfer
