// Failures users reported against inference servers, one test per row (rows A, D, F, G, H).
#include <gtest/gtest.h>

#include "integration/server/server_fixture.h"

namespace deepinfer {
namespace {

using namespace testing;  // NOLINT: the helpers of this folder

constexpr std::string_view kChat = "/v1/chat/completions";

class BugCases : public ServerTest {
 protected:
  // A user message of exactly this many prompt tokens, rendered and all.
  json::object ChatOfLength(size_t num_tokens, const json::object& more = {}) {
    std::string text = "a";
    while (true) {
      json::object body = ChatBody({{"messages", {{{"role", "user"}, {"content", text}}}}});
      for (const auto& member : more) body[member.key()] = member.value();
      const json::value rendered = ParseBody(Post("/v1/chat/completions/render", body));
      const auto count = static_cast<size_t>(rendered.at("num_tokens").as_int64());
      if (count >= num_tokens) {
        EXPECT_EQ(count, num_tokens);
        return body;
      }
      for (size_t i = count; i < num_tokens; ++i) text += " a";
    }
  }
  std::string Content(const ClientResponse& response) {
    return std::string(
        ParseBody(response).at("choices").at(0).at("message").at("content").as_string());
  }
};

TEST_F(BugCases, A01_StopStringHeldBack) {
  Start();
  for (const int32_t commit : {1, 2, 3, 5, 8, 0}) {
    worker_->SetCommit(commit);
    SetText("ABCDEFGHIJK");
    EXPECT_EQ(
        JoinDeltas(ParseEvents(Post(kChat, ChatBody({{"stop", {"DEFGHIJ"}}, {"stream", true}}))),
                   "content"),
        "ABC");
    SetText("xaaab");
    EXPECT_EQ(JoinDeltas(ParseEvents(Post(kChat, ChatBody({{"stop", "aab"}, {"stream", true}}))),
                         "content"),
              "xa");
  }
}

TEST_F(BugCases, A02_StopStringAcrossTokens) {
  Start();
  SetText("Thought: done\nObservation: 3");
  const json::object body = ChatBody({{"stop", {"\nObservation"}}});
  EXPECT_EQ(Content(Post(kChat, body)), "Thought: done");
  json::object streamed = body;
  streamed["stream"] = true;
  EXPECT_EQ(JoinDeltas(ParseEvents(Post(kChat, streamed)), "content"), "Thought: done");
}

TEST_F(BugCases, A03_NoEmptyDeltasWhileTextIsHeld) {
  Start();
  SetText("ab STO more text STO and on");
  for (const int32_t commit : {1, 2, 3, 5, 8, 0}) {
    worker_->SetCommit(commit);
    const auto events = ParseEvents(Post(kChat, ChatBody({{"stop", "STOP"}, {"stream", true}})));
    ASSERT_GE(events.size(), 2u);
    for (size_t i = 0; i < events.size(); ++i) {
      const json::value& choice = events[i].at("choices").at(0);
      const json::object& delta = choice.at("delta").as_object();
      const json::value* content = delta.if_contains("content");
      if (delta.contains("role") || content == nullptr) continue;
      EXPECT_FALSE(content->as_string().empty()) << json::serialize(events[i]);
    }
  }
}

TEST_F(BugCases, A04_TextBeforeTheStopInNonStream) {
  Start();
  SetText("kept END dropped");
  EXPECT_EQ(Content(Post(kChat, ChatBody({{"stop", "END"}}))), "kept ");
}

TEST_F(BugCases, A06_SpeltEndMarkerIsText) {
  Start();
  std::vector<int32_t> spelt;
  tokenizer_->EncodeText("x<｜end▁of▁sentence｜>y", &spelt);
  worker_->SetOutput(spelt);
  EXPECT_EQ(Content(Post(kChat, ChatBody())), "x<｜end▁of▁sentence｜>y");
  SetText("only this");
  EXPECT_EQ(Content(Post(kChat, ChatBody())), "only this");
}

TEST_F(BugCases, A10_FinalEmojiIsWhole) {
  Start();
  SetText("ok \xF0\x9F\x8E\x89");
  EXPECT_EQ(Content(Post(kChat, ChatBody())), "ok \xF0\x9F\x8E\x89");
  EXPECT_EQ(JoinDeltas(ParseEvents(Post(kChat, ChatBody({{"stream", true}}))), "content"),
            "ok \xF0\x9F\x8E\x89");
}

TEST_F(BugCases, D01_CompletionTokensAreTheCommittedIds) {
  Start();
  worker_->SetOutput(Encode("word "), true);
  for (const int64_t count : {1, 7, 64}) {
    const auto events =
        ParseEvents(Post(kChat, ChatBody({{"max_tokens", count},
                                          {"stream", true},
                                          {"stream_options", {{"include_usage", true}}}})));
    ASSERT_FALSE(events.empty());
    EXPECT_EQ(events.back().at("usage").at("completion_tokens").as_int64(), count);
  }
}

TEST_F(BugCases, D02_ContinuousUsageIsMonotone) {
  Start();
  worker_->SetOutput(Encode("some words to count"), true);
  const json::object body = ChatBody({{"max_tokens", 20}});
  const json::value whole = ParseBody(Post(kChat, body));
  json::object streamed = body;
  streamed["stream"] = true;
  streamed["stream_options"] = {{"include_usage", true}, {"continuous_usage_stats", true}};
  int64_t last = 0;
  const auto events = ParseEvents(Post(kChat, streamed));
  ASSERT_FALSE(events.empty());
  for (const json::value& event : events) {
    const int64_t now = event.at("usage").at("completion_tokens").as_int64();
    EXPECT_GE(now, last);
    last = now;
  }
  EXPECT_EQ(events.back().at("usage"), whole.at("usage"));
}

TEST_F(BugCases, D03_UsageChunkHasEmptyChoices) {
  Start();
  const auto events = ParseEvents(
      Post(kChat, ChatBody({{"stream", true}, {"stream_options", {{"include_usage", true}}}})));
  ASSERT_FALSE(events.empty());
  EXPECT_TRUE(events.back().at("choices").as_array().empty());
}

TEST_F(BugCases, D08_CacheFieldsArePresentWithoutAHit) {
  Start();
  const json::value usage = ParseBody(Post(kChat, ChatBody())).at("usage");
  EXPECT_EQ(usage.at("prompt_cache_hit_tokens").as_int64(), 0);
  EXPECT_EQ(usage.at("prompt_cache_miss_tokens"), usage.at("prompt_tokens"));
  EXPECT_EQ(usage.at("prompt_tokens_details").at("cached_tokens").as_int64(), 0);
  EXPECT_EQ(usage.at("prompt_tokens_details").at("cache_write_tokens").as_int64(), 0);
  EXPECT_EQ(usage.at("completion_tokens_details").at("reasoning_tokens").as_int64(), 0);
}

TEST_F(BugCases, F01_ChatMaxTokensZeroTwice) {
  Start();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Post(kChat, ChatBody({{"max_tokens", 0}})).status, 400);
  }
  ExpectAlive();
}

TEST_F(BugCases, F02_MaxTokensZeroIsNever500) {
  Start();
  for (const char* path : {"/v1/chat/completions", "/v1/completions"}) {
    json::object body = ChatBody({{"max_tokens", 0}});
    body["prompt"] = "x";
    EXPECT_EQ(Post(path, body).status, 400) << path;
  }
}

TEST_F(BugCases, F03_PromptLongerThanTheContextNamesBothNumbers) {
  Start();
  const ClientResponse response = Post(kChat, ChatOfLength(kContext));
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(ErrorCode(response), "context_length_exceeded");
  const json::value error = ParseBody(response).at("error");
  EXPECT_EQ(error.at("n_prompt_tokens").as_int64(), kContext);
  EXPECT_EQ(error.at("n_ctx").as_int64(), kContext);
  EXPECT_TRUE(worker_->submitted().empty());
}

TEST_F(BugCases, F04_MaxCompletionTokensIsHonoured) {
  Start();
  worker_->SetOutput(Encode("word "), true);
  const json::value body = ParseBody(Post(kChat, ChatBody({{"max_completion_tokens", 50}})));
  EXPECT_EQ(body.at("usage").at("completion_tokens").as_int64(), 50);
}

TEST_F(BugCases, F05_LimitIsCutToTheRoomLeft) {
  Start();
  worker_->SetOutput(Encode("word "), true);
  const json::value body =
      ParseBody(Post(kChat, ChatOfLength(kContext - 5, {{"max_completion_tokens", 100'000}})));
  EXPECT_EQ(body.at("usage").at("completion_tokens").as_int64(), 5);
  EXPECT_EQ(body.at("choices").at(0).at("finish_reason").as_string(), "length");
}

TEST_F(BugCases, F06_LastFreePositionGivesText) {
  Start();
  worker_->SetOutput(Encode("word "), true);
  const ClientResponse response = Post(kChat, ChatOfLength(kContext - 1));
  ASSERT_EQ(response.status, 200);
  EXPECT_FALSE(Content(response).empty());
}

TEST_F(BugCases, F07_EmptyMessages) {
  Start();
  const ClientResponse response = Post(kChat, ChatBody({{"messages", json::array()}}));
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(ParseBody(response).at("error").at("param").as_string(), "messages");
}

TEST_F(BugCases, F08_OverlongPromptLeavesOthersAlone) {
  Start();
  worker_->Hold();
  TestClient stream(port());
  stream.Send("POST", kChat, json::serialize(ChatBody({{"stream", true}})));
  ASSERT_TRUE(worker_->WaitSubmitted(1));
  worker_->Step();
  EXPECT_EQ(Post(kChat, ChatOfLength(kContext)).status, 400);
  worker_->Release();
  const auto response = stream.ReadResponse();
  ASSERT_TRUE(response);
  EXPECT_EQ(JoinDeltas(ParseEvents(*response), "content"), "Hello there.");
}

TEST_F(BugCases, F10_OverlongPromptIs400BeforeAnyStreamHeader) {
  Start();
  const ClientResponse response = Post(kChat, ChatOfLength(kContext, {{"stream", true}}));
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(response.headers.at("content-type"), "application/json");
}

TEST_F(BugCases, G01_LogitBiasWithAWordAsKey) {
  Start();
  EXPECT_EQ(Post(kChat, ChatBody({{"logit_bias", {{"AI", -100}}}})).status, 400);
  ExpectAlive();
}

TEST_F(BugCases, G02_LogitBiasBeyondTheVocabularyNamesTheId) {
  Start();
  const std::string id = std::to_string(tokenizer_->vocab_size());
  const ClientResponse response = Post(kChat, ChatBody({{"logit_bias", {{id, 1}}}}));
  EXPECT_EQ(response.status, 400);
  EXPECT_NE(response.body.find(id), std::string::npos);
}

TEST_F(BugCases, G03_NegativeIds) {
  Start();
  EXPECT_EQ(
      Post("/v1/completions", CompletionsBody({{"prompt", json::array{json::array{-1}}}})).status,
      400);
  EXPECT_EQ(Post("/detokenize", {{"tokens", json::array{-1}}}).status, 400);
  ExpectAlive();
}

TEST_F(BugCases, G04_TopKMinusOneAndZeroAreOff) {
  Start();
  for (const int top_k : {-1, 0}) {
    EXPECT_EQ(Post(kChat, ChatBody({{"top_k", top_k}})).status, 200);
    EXPECT_EQ(worker_->submitted().back().sampling.top_k, 0);
  }
  EXPECT_EQ(Post(kChat, ChatOfLength(kContext, {{"top_k", -1}})).status, 400);
}

TEST_F(BugCases, H01_LogprobsAloneHaveEmptyAlternatives) {
  Start();
  const json::value body = ParseBody(Post(kChat, ChatBody({{"logprobs", true}})));
  const json::array& content = body.at("choices").at(0).at("logprobs").at("content").as_array();
  EXPECT_EQ(content.size(), Encode("Hello there.").size());
  for (const json::value& entry : content) EXPECT_TRUE(entry.at("top_logprobs").as_array().empty());
}

TEST_F(BugCases, H03_AlternativesBelongToTheirTokens) {
  Start();
  for (const int32_t commit : {1, 3, 0}) {
    worker_->SetCommit(commit);
    const json::value body =
        ParseBody(Post(kChat, ChatBody({{"logprobs", true}, {"top_logprobs", 3}})));
    for (const json::value& entry :
         body.at("choices").at(0).at("logprobs").at("content").as_array()) {
      ASSERT_EQ(entry.at("top_logprobs").as_array().size(), 3u);
      EXPECT_EQ(entry.at("top_logprobs").at(0).at("token"), entry.at("token"));
      EXPECT_EQ(entry.at("top_logprobs").at(0).at("logprob"), entry.at("logprob"));
    }
  }
}

}  // namespace
}  // namespace deepinfer
