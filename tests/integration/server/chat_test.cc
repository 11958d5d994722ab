// /v1/chat/completions over real sockets: answers, streams, stop strings, usage.
#include <gtest/gtest.h>

#include <set>

#include "base/clock.h"
#include "base/philox.h"
#include "integration/server/server_fixture.h"

namespace deepinfer {
namespace {

using namespace testing;  // NOLINT: the helpers of this folder

constexpr std::string_view kPath = "/v1/chat/completions";

class ChatTest : public ServerTest {
 protected:
  json::value Message(const json::value& body) {
    return body.at("choices").as_array().at(0).at("message");
  }
  int64_t Usage(const json::value& body, std::string_view field) {
    return body.at("usage").at({field.data(), field.size()}).as_int64();
  }
};

TEST_F(ChatTest, AnswersWithTextAndExactUsage) {
  Start();
  SetText("The answer is 42.");
  worker_->SetCached(2);
  const ClientResponse response = Post(kPath, ChatBody());
  ASSERT_EQ(response.status, 200) << response.body;
  const json::value body = ParseBody(response);
  EXPECT_EQ(body.at("object").as_string(), "chat.completion");
  EXPECT_EQ(body.at("model").as_string(), kModel);
  EXPECT_TRUE(std::string(body.at("id").as_string()).starts_with("chatcmpl-"));
  EXPECT_TRUE(std::string(body.at("system_fingerprint").as_string()).starts_with("deepinfer-"));
  EXPECT_EQ(Message(body).at("content").as_string(), "The answer is 42.");
  EXPECT_EQ(body.at("choices").at(0).at("finish_reason").as_string(), "stop");
  const auto submitted = worker_->submitted();
  ASSERT_EQ(submitted.size(), 1u);
  EXPECT_EQ(Usage(body, "prompt_tokens"), static_cast<int64_t>(submitted[0].prompt_ids.size()));
  EXPECT_EQ(Usage(body, "completion_tokens"),
            static_cast<int64_t>(Encode("The answer is 42.").size()) + 1);
  EXPECT_EQ(Usage(body, "prompt_cache_hit_tokens"), 2);
  EXPECT_EQ(response.headers.at("x-deepinfer-cached-tokens"), "2");
  EXPECT_EQ(response.headers.at("x-deepinfer-queue-ms"), "1");
}

TEST_F(ChatTest, PromptIsTheRenderedConversation) {
  Start();
  ASSERT_EQ(Post(kPath, ChatBody()).status, 200);
  EXPECT_EQ(worker_->submitted().at(0).prompt_ids,
            Encode("<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜></think>"));
}

TEST_F(ChatTest, StreamEqualsNonStreamForEveryCommitSize) {
  Start();
  const std::string text = "Reasoned well.</think>\n\nGrüße, 你好 and \xF0\x9F\x98\x80 done.";
  SetText(text);
  const json::object body =
      ChatBody({{"thinking", {{"type", "enabled"}}}, {"logprobs", true}, {"top_logprobs", 2}});
  const json::value whole = ParseBody(Post(kPath, body));
  const json::value message = Message(whole);
  EXPECT_EQ(message.at("reasoning_content").as_string(), "Reasoned well.");
  EXPECT_EQ(message.at("content").as_string(), "Grüße, 你好 and \xF0\x9F\x98\x80 done.");
  json::object streamed = body;
  streamed["stream"] = true;
  streamed["stream_options"] = {{"include_usage", true}};
  for (const int32_t commit : {1, 2, 3, 5, 8, 0}) {
    worker_->SetCommit(commit);
    const auto events = ParseEvents(Post(kPath, streamed));
    ASSERT_FALSE(events.empty());
    EXPECT_EQ(JoinDeltas(events, "content"), message.at("content").as_string()) << commit;
    EXPECT_EQ(JoinDeltas(events, "reasoning_content"), message.at("reasoning_content").as_string());
    EXPECT_EQ(events.back().at("usage"), whole.at("usage"));
    json::array logprobs;
    for (const json::value& event : events) {
      for (const json::value& choice : event.at("choices").as_array()) {
        const json::value* entry = choice.as_object().if_contains("logprobs");
        if (entry == nullptr || !entry->is_object()) continue;
        const json::value* content = entry->get_object().if_contains("content");
        if (content == nullptr || !content->is_array()) continue;
        for (const json::value& token : content->get_array()) logprobs.push_back(token);
      }
    }
    EXPECT_EQ(json::value(logprobs), whole.at("choices").at(0).at("logprobs").at("content"))
        << commit;
  }
}

TEST_F(ChatTest, StreamHasOneRoleOneFinishAndUsageOnlyWhenAsked) {
  Start();
  const ClientResponse response = Post(kPath, ChatBody({{"stream", true}}));
  EXPECT_EQ(response.headers.at("content-type"), "text/event-stream");
  EXPECT_EQ(response.headers.at("cache-control"), "no-cache");
  EXPECT_EQ(response.headers.at("x-accel-buffering"), "no");
  const auto events = ParseEvents(response);
  ASSERT_GE(events.size(), 2u);
  int roles = 0;
  int finishes = 0;
  for (const json::value& event : events) {
    EXPECT_FALSE(event.as_object().contains("usage"));
    const json::value& choice = event.at("choices").at(0);
    roles += choice.at("delta").as_object().contains("role") ? 1 : 0;
    finishes += choice.at("finish_reason").is_string() ? 1 : 0;
  }
  EXPECT_EQ(roles, 1);
  EXPECT_EQ(finishes, 1);
  EXPECT_TRUE(events.front().at("choices").at(0).at("delta").as_object().contains("role"));
}

TEST_F(ChatTest, IncludeUsageAddsOneLastChunkWithoutChoices) {
  Start();
  const auto events = ParseEvents(
      Post(kPath, ChatBody({{"stream", true}, {"stream_options", {{"include_usage", true}}}})));
  ASSERT_GE(events.size(), 3u);
  for (size_t i = 0; i + 1 < events.size(); ++i) EXPECT_TRUE(events[i].at("usage").is_null());
  EXPECT_TRUE(events.back().at("choices").as_array().empty());
  EXPECT_TRUE(events.back().at("usage").is_object());
}

TEST_F(ChatTest, EveryReadOfASlowStreamHoldsWholeEvents) {
  Start();
  worker_->Hold();
  TestClient client(port());
  client.Send("POST", kPath, json::serialize(ChatBody({{"stream", true}})));
  ASSERT_TRUE(client.ReadHead());
  ASSERT_TRUE(worker_->WaitSubmitted(1));
  for (int i = 0; i < 3; ++i) {
    worker_->Step();
    const std::string bytes = client.ReadSome();
    EXPECT_TRUE(bytes.ends_with("\n\n\r\n")) << bytes;
    EXPECT_NE(bytes.find("\r\ndata: {"), std::string::npos) << bytes;
  }
  worker_->Release();
}

TEST_F(ChatTest, ChoicesGetDerivedSeedsAndTheirOwnText) {
  Start();
  worker_->SetOutputOf([this](const EngineRequest& request) {
    std::vector<int32_t> ids = Encode(request.request_id.ends_with("-0") ? "first" : "other");
    ids.push_back(1);
    return ids;
  });
  const json::value body = ParseBody(Post(kPath, ChatBody({{"n", 3}, {"seed", 77}})));
  ASSERT_EQ(body.at("choices").as_array().size(), 3u);
  EXPECT_EQ(body.at("choices").at(0).at("message").at("content").as_string(), "first");
  EXPECT_EQ(body.at("choices").at(2).at("message").at("content").as_string(), "other");
  const auto submitted = worker_->submitted();
  ASSERT_EQ(submitted.size(), 3u);
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(submitted[i].sampling.seed, DeriveSeed(77, i));
    EXPECT_TRUE(submitted[i].sampling.has_seed);
  }
  // The prompt is counted once.
  EXPECT_EQ(Usage(body, "prompt_tokens"), static_cast<int64_t>(submitted[0].prompt_ids.size()));
}

TEST_F(ChatTest, UnseededRequestsGetDifferentSeeds) {
  Start();
  Post(kPath, ChatBody());
  Post(kPath, ChatBody());
  const auto submitted = worker_->submitted();
  ASSERT_EQ(submitted.size(), 2u);
  EXPECT_FALSE(submitted[0].sampling.has_seed);
  EXPECT_NE(submitted[0].sampling.seed, submitted[1].sampling.seed);
}

TEST_F(ChatTest, StopStringEndsTheAnswerAndTheWork) {
  Start();
  worker_->SetOutput(Encode("one two STOP three"), /*endless=*/true);
  worker_->SetNeverFinish(true);
  for (const bool stream : {false, true}) {
    const ClientResponse response =
        Post(kPath, ChatBody({{"stop", "STOP"}, {"max_tokens", 400}, {"stream", stream}}));
    if (stream) {
      const auto events = ParseEvents(response);
      EXPECT_EQ(JoinDeltas(events, "content"), "one two ");
      EXPECT_EQ(events.back().at("choices").at(0).at("finish_reason").as_string(), "stop");
    } else {
      const json::value body = ParseBody(response);
      EXPECT_EQ(Message(body).at("content").as_string(), "one two ");
      EXPECT_EQ(body.at("choices").at(0).at("stop_reason").as_string(), "STOP");
    }
    EXPECT_TRUE(worker_->WaitCancelled(stream ? 2 : 1));
  }
  worker_->SetNeverFinish(false);
  ExpectAlive();
}

TEST_F(ChatTest, NoStopStringEndsAnAnswerBeforeItsLeastLength) {
  Start();
  worker_->SetOutput(Encode("one STOP two STOP three"));
  const auto least = static_cast<int64_t>(Encode("one STOP").size());
  for (const bool stream : {false, true}) {
    for (const int64_t min_tokens : {least - 1, least}) {
      const std::string expected = min_tokens < least ? "one " : "one STOP two ";
      const ClientResponse chat =
          Post(kPath, ChatBody({{"stop", "STOP"}, {"min_tokens", min_tokens}, {"stream", stream}}));
      EXPECT_EQ(stream ? JoinDeltas(ParseEvents(chat), "content")
                       : std::string(Message(ParseBody(chat)).at("content").as_string()),
                expected);
      const ClientResponse completion =
          Post("/v1/completions",
               CompletionsBody({{"stop", "STOP"}, {"min_tokens", min_tokens}, {"stream", stream}}));
      std::string text;
      for (const json::value& part :
           stream ? ParseEvents(completion) : std::vector<json::value>{ParseBody(completion)}) {
        for (const json::value& choice : part.at("choices").as_array()) {
          text += choice.at("text").as_string();
        }
      }
      EXPECT_EQ(text, expected);
    }
  }
}

TEST_F(ChatTest, TokenLimitDefaultsAndCaps) {
  Start();
  Post(kPath, ChatBody());
  Post(kPath, ChatBody({{"max_tokens", 5}}));
  Post(kPath, ChatBody({{"max_tokens", 5}, {"max_completion_tokens", 7}}));
  const auto submitted = worker_->submitted();
  ASSERT_EQ(submitted.size(), 3u);
  const auto prompt = static_cast<int32_t>(submitted[0].prompt_ids.size());
  EXPECT_EQ(submitted[0].sampling.max_tokens, kContext - prompt);
  EXPECT_EQ(submitted[1].sampling.max_tokens, 5);
  EXPECT_EQ(submitted[2].sampling.max_tokens, 7);
}

TEST_F(ChatTest, ReadTimeoutOfTheClientBoundsOnlyWholeAnswers) {
  Start();
  const int64_t before_us = SteadyClock().NowUs();
  const TestClient::Headers headers = {{"x-stainless-read-timeout", "600"}};
  Post(kPath, ChatBody(), headers);
  Post(kPath, ChatBody({{"stream", true}}), headers);
  const int64_t after_us = SteadyClock().NowUs();
  const auto submitted = worker_->submitted();
  ASSERT_EQ(submitted.size(), 2u);
  EXPECT_GE(submitted[0].deadline_us, before_us + 600'000'000);
  EXPECT_LE(submitted[0].deadline_us, after_us + 600'000'000);
  EXPECT_GE(submitted[1].deadline_us, before_us + 3'600'000'000);
}

TEST_F(ChatTest, WaitIsBoundedByTheQueueTimeOut) {
  options_.queue_timeout = std::chrono::milliseconds(1500);
  Start();
  const int64_t before_us = SteadyClock().NowUs();
  Post(kPath, ChatBody());
  const int64_t after_us = SteadyClock().NowUs();
  const auto submitted = worker_->submitted();
  ASSERT_EQ(submitted.size(), 1u);
  EXPECT_GE(submitted[0].queue_deadline_us, before_us + 1'500'000);
  EXPECT_LE(submitted[0].queue_deadline_us, after_us + 1'500'000);
}

TEST_F(ChatTest, RenderLeavesOutTheGenerationPromptWhenAsked) {
  Start();
  const auto prompt = [&](bool with_header) {
    const json::value body = ParseBody(
        Post("/v1/chat/completions/render", ChatBody({{"add_generation_prompt", with_header}})));
    return std::string(body.at("prompt").as_string());
  };
  const std::string header = "<｜Assistant｜></think>";
  EXPECT_EQ(prompt(true), prompt(false) + header);
  EXPECT_EQ(prompt(false).find(header), std::string::npos);
}

TEST_F(ChatTest, TimingsComeWithTheUsageExtensionOrWhenTheyAreAskedFor) {
  for (const bool extension : {true, false}) {
    for (const bool asked : {true, false}) {
      options_.usage_extension = extension;
      options_.per_request_metrics = asked;
      Start();
      const json::value answer = ParseBody(Post(kPath, ChatBody()));
      const json::value* const metrics = answer.as_object().if_contains("metrics");
      ASSERT_EQ(metrics != nullptr, extension || asked);
      if (metrics != nullptr) {
        EXPECT_GT(metrics->at("ttft_ms").to_number<double>(), 0);
        EXPECT_EQ(metrics->at("queue_ms").to_number<double>(), 1);  // of the fake worker
        EXPECT_GE(metrics->at("e2e_ms").to_number<double>(),
                  metrics->at("ttft_ms").to_number<double>());
      }
      server_->Stop();
    }
  }
}

TEST_F(ChatTest, EchoBeginsAnAnswerWithTheMessageThatItContinues) {
  Start();
  SetText(" and more.");
  json::object body = ChatBody({{"echo", true}, {"logprobs", true}, {"n", 2}});
  body["messages"].as_array().push_back(
      {{"role", "assistant"}, {"content", "So far"}, {"prefix", true}});
  const json::value whole = ParseBody(Post(kPath, body));
  for (const json::value& choice : whole.at("choices").as_array()) {
    EXPECT_EQ(choice.at("message").at("content").as_string(), "So far and more.");
    // What was given was not sampled.
    EXPECT_EQ(choice.at("logprobs").at("content").as_array().size(), Encode(" and more.").size());
  }
  body["stream"] = true;
  const auto events = ParseEvents(Post(kPath, body));
  EXPECT_EQ(JoinDeltas(events, "content"), "So far and more.");
  EXPECT_EQ(JoinDeltas(events, "content", 1), "So far and more.");
  // Without such a message there is nothing to repeat.
  const json::value plain = ParseBody(Post(kPath, ChatBody({{"echo", true}})));
  EXPECT_EQ(plain.at("choices").at(0).at("message").at("content").as_string(), " and more.");
}

TEST_F(ChatTest, LengthFinish) {
  Start();
  worker_->SetOutput(Encode("word "), true);
  const json::value body = ParseBody(Post(kPath, ChatBody({{"max_tokens", 3}})));
  EXPECT_EQ(body.at("choices").at(0).at("finish_reason").as_string(), "length");
  EXPECT_EQ(Usage(body, "completion_tokens"), 3);
}

TEST_F(ChatTest, ToolCallsAreParsedWithToolsOn) {
  Start();
  SetText(
      "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n"
      "<｜DSML｜ parameter name=\"x\" string=\"true\">v</｜DSML｜ parameter>\n"
      "</｜DSML｜ invoke>\n</｜DSML｜ calls>");
  const json::object body =
      ChatBody({{"tools", {{{"type", "function"}, {"function", {{"name", "f"}}}}}}});
  const json::value answer = ParseBody(Post(kPath, body));
  const json::value& choice = answer.at("choices").at(0);
  EXPECT_EQ(choice.at("finish_reason").as_string(), "tool_calls");
  const json::value& call = choice.at("message").at("tool_calls").at(0);
  EXPECT_EQ(call.at("function").at("name").as_string(), "f");
  EXPECT_EQ(call.at("function").at("arguments").as_string(), "{\"x\": \"v\"}");
}

TEST_F(ChatTest, AliasesAndRenderedPrompt) {
  options_.model_aliases["alias"] = std::string(kModel);
  Start();
  for (const char* path : {"/chat/completions", "/beta/chat/completions"}) {
    EXPECT_EQ(Post(path, ChatBody({{"model", "alias"}})).status, 200) << path;
  }
  const size_t before = worker_->submitted().size();
  const json::value rendered = ParseBody(Post("/v1/chat/completions/render", ChatBody()));
  EXPECT_EQ(worker_->submitted().size(), before);
  EXPECT_EQ(rendered.at("prompt").as_string(),
            "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜></think>");
  EXPECT_EQ(rendered.at("num_tokens").as_int64(),
            static_cast<int64_t>(worker_->submitted().at(0).prompt_ids.size()));
}

TEST_F(ChatTest, ChoicesShareTheirPrompt) {
  Start();
  Post(kPath, ChatBody({{"n", 3}}));
  const std::vector<EngineRequest> submitted = worker_->submitted();
  ASSERT_EQ(submitted.size(), 3u);
  EXPECT_EQ(submitted[0].branch_of, "");
  EXPECT_EQ(submitted[1].branch_of, submitted[0].request_id);
  EXPECT_EQ(submitted[2].branch_of, submitted[0].request_id);
}

TEST_F(ChatTest, UsersShareCachedPrefixesWithThemselvesOnly) {
  Start();
  for (const json::object& more :
       {json::object{}, json::object{{"user", "a"}}, json::object{{"user", "b"}},
        json::object{{"user_id", "a"}}, json::object{{"cache_salt", "a"}},
        json::object{{"user", "a"}}}) {
    EXPECT_EQ(Post(kPath, ChatBody(more)).status, 200);
  }
  const std::vector<EngineRequest> submitted = worker_->submitted();
  ASSERT_EQ(submitted.size(), 6u);
  std::set<Sha256Digest> scopes;
  for (size_t i = 0; i < 5; ++i) scopes.insert(submitted[i].cache_scope);
  EXPECT_EQ(scopes.size(), 5u);
  EXPECT_EQ(submitted[5].cache_scope, submitted[1].cache_scope);
}

TEST_F(ChatTest, BatchTiersAndCompactionsGiveWay) {
  Start();
  Post(kPath, ChatBody());
  Post(kPath, ChatBody({{"service_tier", "flex"}}));
  Post(kPath, ChatBody(), {{"x-deepseek-harness-compact", "1"}});
  const std::vector<EngineRequest> submitted = worker_->submitted();
  ASSERT_EQ(submitted.size(), 3u);
  EXPECT_EQ(submitted[0].request_class, RequestClass::kInteractive);
  EXPECT_EQ(submitted[1].request_class, RequestClass::kBatch);
  EXPECT_EQ(submitted[2].request_class, RequestClass::kBatch);
}

TEST_F(ChatTest, EveryClassOfServiceCanBeAskedForAndTheAnswerTellsTheTierUsed) {
  struct Case {
    json::object asked;
    RequestClass request_class;
    std::string answered;  // empty: no field
  };
  const Case cases[] = {
      {{{"priority", -5}}, RequestClass::kInteractive, ""},
      {{{"priority", 1}}, RequestClass::kAgent, ""},
      {{{"priority", 2}}, RequestClass::kBatch, ""},
      {{{"priority", 1}, {"service_tier", "auto"}}, RequestClass::kAgent, "default"},
      {{{"priority", 1}, {"service_tier", "default"}}, RequestClass::kAgent, "default"},
      {{{"priority", 1}, {"service_tier", "fast"}}, RequestClass::kInteractive, "default"},
      {{{"priority", 1}, {"service_tier", "priority"}}, RequestClass::kInteractive, "default"},
      {{{"priority", 1}, {"service_tier", "scale"}}, RequestClass::kInteractive, "default"},
      {{{"priority", 1}, {"service_tier", "flex"}}, RequestClass::kBatch, "flex"},
      {{{"service_tier", "batch"}}, RequestClass::kBatch, "batch"},
  };
  Start();
  for (const Case& c : cases) {
    const std::string asked = json::serialize(c.asked);
    const json::value body = ParseBody(Post(kPath, ChatBody(c.asked)));
    EXPECT_EQ(worker_->submitted().back().request_class, c.request_class) << asked;
    const json::value* tier = body.as_object().if_contains("service_tier");
    EXPECT_EQ(tier == nullptr ? "" : std::string(tier->as_string()), c.answered) << asked;
  }
  Post("/v1/completions", CompletionsBody({{"priority", 1}}));
  EXPECT_EQ(worker_->submitted().back().request_class, RequestClass::kAgent);
  json::object responses = {{"model", kModel}, {"input", "Hi"}, {"service_tier", "flex"}};
  const json::value answer = ParseBody(Post("/v1/responses", responses));
  EXPECT_EQ(worker_->submitted().back().request_class, RequestClass::kBatch);
  EXPECT_EQ(answer.at("service_tier").as_string(), "flex");
}

TEST_F(ChatTest, MetricsEqualUsage) {
  Start();
  worker_->SetCached(1);
  int64_t prompt = 0;
  int64_t completion = 0;
  int64_t cached = 0;
  for (int i = 0; i < 3; ++i) {
    const json::value body = ParseBody(Post(kPath, ChatBody({{"n", i + 1}})));
    prompt += Usage(body, "prompt_tokens");
    completion += Usage(body, "completion_tokens");
    cached += Usage(body, "prompt_cache_hit_tokens");
  }
  EXPECT_EQ(Metric("vllm:prompt_tokens_total"), prompt);
  EXPECT_EQ(Metric("deepinfer:prompt_tokens_total"), prompt);
  EXPECT_EQ(Metric("deepinfer:generation_tokens_total"), completion);
  EXPECT_EQ(Metric("deepinfer:prefix_cache_hits_total"), cached);
  EXPECT_EQ(Metric("vllm:e2e_request_latency_seconds_count"), 3);
}

}  // namespace
}  // namespace deepinfer
