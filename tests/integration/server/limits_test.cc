// Clients that read slowly, rates of a key, and an engine that stops (api.md §13, §14, §15).
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <thread>

#include "integration/server/server_fixture.h"
#include "support/temp_dir.h"

namespace deepinfer {
namespace {

using namespace testing;  // NOLINT: the helpers of this folder

constexpr std::string_view kChat = "/v1/chat/completions";

class LimitsTest : public ServerTest {
 protected:
  static constexpr int kTokens = 300;
  static constexpr int kSmallBuffer = 4096;

  // Events of about 60 KB, so that a few fill every buffer between server and client.
  std::string LargeStreamBody() {
    worker_->SetOutput(Encode("word "), /*endless=*/true);
    return json::serialize(ChatBody(
        {{"stream", true}, {"max_tokens", kTokens}, {"logprobs", true}, {"top_logprobs", 1000}}));
  }
  void StartWithLargeEvents() {
    options_.chat.max_top_logprobs = 1000;
    Start();
  }
  void StartWithKeys(std::string_view keys) {
    options_.api_key_file =
        folder_.Write("keys.json", std::string(R"({"keys":[)").append(keys) + "]}");
    Start();
  }
  // Tokens that came out once no more do.
  int64_t EmittedWhenStill() {
    int64_t last = -1;
    for (int i = 0; i < 200 && last != worker_->emitted(); ++i) {
      last = worker_->emitted();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return last;
  }
  bool WaitNothingOutstanding() {
    for (int i = 0; i < 5000 && worker_->outstanding() > 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return worker_->outstanding() == 0;
  }

 private:
  const TempDir folder_;
};

TEST_F(LimitsTest, AClientThatDoesNotReadStopsItsOwnRequestOnly) {
  StartWithLargeEvents();
  TestClient slow(port(), kSmallBuffer);
  slow.Send("POST", kChat, LargeStreamBody());
  ASSERT_TRUE(worker_->WaitStalled());
  EXPECT_LT(EmittedWhenStill(), kTokens);
  EXPECT_LE(worker_->outstanding(), kDeliveryWindow);
  EXPECT_GT(worker_->outstanding(), 0);
  SetText("Hello.");
  EXPECT_EQ(Post(kChat, ChatBody()).status, 200);

  // It goes on where it stopped once the client reads.
  const auto response = slow.ReadResponse();
  ASSERT_TRUE(response);
  EXPECT_EQ(JoinDeltas(ParseEvents(*response), "content").size(),
            kTokens / Encode("word ").size() * std::string("word ").size());
  EXPECT_TRUE(WaitNothingOutstanding());
}

TEST_F(LimitsTest, AClientThatLeavesLetsGoOfWhatItDidNotRead) {
  StartWithLargeEvents();
  for (const bool reset : {true, false}) {
    TestClient slow(port(), kSmallBuffer);
    slow.Send("POST", kChat, LargeStreamBody());
    ASSERT_TRUE(worker_->WaitStalled());
    reset ? slow.Reset() : slow.Close();
    EXPECT_TRUE(worker_->WaitIdle());
    EXPECT_TRUE(WaitNothingOutstanding());
  }
}

TEST_F(LimitsTest, RequestsOfAKeyAreCountedAndTold) {
  StartWithKeys(R"({"name":"a","key":"k","max_requests_per_minute":2},{"name":"b","key":"free"})");
  for (const char* remaining : {"1", "0"}) {
    const ClientResponse answer = Post(kChat, ChatBody(), {{"x-api-key", "k"}});
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.headers.at("x-ratelimit-limit-requests"), "2");
    EXPECT_EQ(answer.headers.at("x-ratelimit-remaining-requests"), remaining);
    EXPECT_TRUE(answer.headers.at("x-ratelimit-reset-requests").ends_with("s"));
    EXPECT_FALSE(answer.headers.contains("x-ratelimit-limit-tokens"));
  }
  const ClientResponse refused = Post(kChat, ChatBody(), {{"x-api-key", "k"}});
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(ErrorCode(refused), "rate_limit_exceeded");
  EXPECT_EQ(refused.headers.at("x-ratelimit-remaining-requests"), "0");
  const int wait_s = std::atoi(refused.headers.at("retry-after").c_str());
  EXPECT_TRUE(wait_s >= 1 && wait_s <= 30) << wait_s;
  // Other keys and routes that generate nothing are free.
  const ClientResponse other = Post(kChat, ChatBody(), {{"x-api-key", "free"}});
  EXPECT_EQ(other.status, 200);
  EXPECT_FALSE(other.headers.contains("x-ratelimit-limit-requests"));
  EXPECT_EQ(Get("/v1/models", {{"x-api-key", "k"}}).status, 200);
}

TEST_F(LimitsTest, TokensOfAKeyAreChargedWithPromptAndAnswer) {
  StartWithKeys(R"({"name":"a","key":"k","max_tokens_per_minute":60})");
  SetText("Hello there, hello there.");
  const ClientResponse first = Post(kChat, ChatBody({{"n", 3}}), {{"x-api-key", "k"}});
  EXPECT_EQ(first.headers.at("x-ratelimit-limit-tokens"), "60");
  EXPECT_EQ(first.headers.at("x-ratelimit-remaining-tokens"), "60");
  const json::value usage = ParseBody(first).at("usage");
  const int64_t used = usage.at("total_tokens").as_int64();
  ASSERT_LT(used, 55);
  const ClientResponse second = Post(kChat, ChatBody({{"n", 3}}), {{"x-api-key", "k"}});
  EXPECT_EQ(second.status, 200);
  const int remaining = std::atoi(second.headers.at("x-ratelimit-remaining-tokens").c_str());
  EXPECT_NEAR(remaining, 60 - used, 3) << "the bucket fills by one a second";
  // The second answer went into debt.
  ASSERT_GT(2 * used, 60);
  const ClientResponse refused = Post(kChat, ChatBody(), {{"x-api-key", "k"}});
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.headers.at("x-ratelimit-remaining-tokens"), "0");
  EXPECT_GE(std::atoi(refused.headers.at("retry-after").c_str()), 1);
}

TEST_F(LimitsTest, ARefusedRequestHoldsNoPlaceOfItsKey) {
  StartWithKeys(
      R"({"name":"a","key":"k","max_requests_per_minute":1,"max_concurrent_requests":1})");
  EXPECT_EQ(Post(kChat, ChatBody(), {{"x-api-key", "k"}}).status, 200);
  for (int i = 0; i < 3; ++i) {
    const ClientResponse refused = Post(kChat, ChatBody(), {{"x-api-key", "k"}});
    EXPECT_EQ(refused.status, 429);
    const auto message = ParseBody(refused).at("error").at("message").as_string();
    EXPECT_NE(std::string_view(message).find("minute"), std::string_view::npos) << message;
  }
}

TEST_F(LimitsTest, HealthTellsAnEngineThatDoesNotComeBack) {
  Start();
  worker_->SetHealthy(false);
  for (const char* path : {"/health", "/ping", "/ready"}) {
    const ClientResponse response = Get(path);
    EXPECT_EQ(response.status, 503) << path;
    EXPECT_EQ(ParseBody(response).at("error").at("type").as_string(), "unavailable_error");
  }
  EXPECT_EQ(Get("/live").status, 200);
  worker_->SetHealthy(true);
  EXPECT_EQ(Get("/health").status, 200);
  ExpectAlive();
}

TEST_F(LimitsTest, InMemoryRetentionKeepsThePromptOffDisks) {
  Start();
  ASSERT_EQ(Post(kChat, ChatBody()).status, 200);
  ASSERT_EQ(Post(kChat, ChatBody({{"prompt_cache_retention", "in_memory"}})).status, 200);
  ASSERT_EQ(Post(kChat, ChatBody({{"prompt_cache_retention", "24h"}})).status, 200);
  const auto submitted = worker_->submitted();
  ASSERT_EQ(submitted.size(), 3u);
  EXPECT_TRUE(submitted[0].cache_retention.persist);
  EXPECT_FALSE(submitted[1].cache_retention.persist);
  EXPECT_TRUE(submitted[2].cache_retention.persist);
}

TEST_F(LimitsTest, ARetryWithTheSameKeyIsTheSameWorkWithTheSameDraws) {
  StartWithKeys(R"({"name":"a","key":"one"},{"name":"b","key":"two"})");
  const auto ask = [this](std::string_view key, std::string_view secret,
                          const json::object& more = {}) {
    if (key.empty()) return Post(kChat, ChatBody(more), {{"x-api-key", secret}});
    return Post(kChat, ChatBody(more), {{"x-api-key", secret}, {"Idempotency-Key", key}});
  };
  for (const char* key : {"k", "k", "other", "", ""}) ASSERT_EQ(ask(key, "one").status, 200);
  ASSERT_EQ(ask("k", "two").status, 200) << "keys of another tenant are its own";
  ASSERT_EQ(ask("seeded", "one", {{"seed", 5}}).status, 200);
  ASSERT_EQ(ask("two", "one", {{"n", 2}}).status, 200);
  const std::vector<EngineRequest> r = worker_->submitted();
  ASSERT_EQ(r.size(), 9u);
  EXPECT_EQ(r[0].work_id.size(), 16u);
  EXPECT_EQ(r[0].work_id, r[1].work_id);
  EXPECT_EQ(r[0].sampling.seed, r[1].sampling.seed);
  EXPECT_TRUE(r[0].sampling.has_seed) << "draws must depend on nothing else";
  EXPECT_NE(r[0].request_id, r[1].request_id);
  EXPECT_NE(r[0].work_id, r[2].work_id);
  EXPECT_NE(r[0].sampling.seed, r[2].sampling.seed);
  EXPECT_TRUE(r[3].work_id.empty());
  EXPECT_FALSE(r[3].sampling.has_seed);
  EXPECT_NE(r[0].work_id, r[5].work_id);
  EXPECT_EQ(r[6].sampling.seed, 5u) << "the client's own seed stays";
  EXPECT_NE(r[7].work_id, r[8].work_id) << "choices differ";
  EXPECT_NE(r[7].sampling.seed, r[8].sampling.seed);
}

TEST_F(LimitsTest, AnIdempotencyKeyStandsForOneBody) {
  StartWithKeys(R"({"name":"a","key":"one"})");
  const TestClient::Headers key = {{"x-api-key", "one"}, {"Idempotency-Key", "k"}};
  ASSERT_EQ(Post(kChat, ChatBody(), key).status, 200);
  const ClientResponse reused = Post(kChat, ChatBody({{"temperature", 0.5}}), key);
  EXPECT_EQ(reused.status, 400);
  EXPECT_EQ(ErrorCode(reused), "idempotency_key_reused");
  EXPECT_EQ(Post("/v1/completions", CompletionsBody(), key).status, 400) << "nor for two routes";
  EXPECT_EQ(Post(kChat, ChatBody(), key).status, 200);
}

TEST_F(LimitsTest, ARefusedRequestDoesNotBindItsIdempotencyKey) {
  StartWithKeys(R"({"name":"a","key":"one"})");
  const TestClient::Headers key = {{"x-api-key", "one"}, {"Idempotency-Key", "k"}};
  EXPECT_EQ(Post(kChat, ChatBody({{"temperature", "hot"}}), key).status, 400);
  worker_->SetSubmitStatus(ResourceExhausted("full"));
  EXPECT_EQ(Post(kChat, ChatBody({{"temperature", 0.5}}), key).status, 429);
  worker_->SetSubmitStatus(OkStatus());
  EXPECT_EQ(Post(kChat, ChatBody(), key).status, 200);
  EXPECT_EQ(Post(kChat, ChatBody({{"temperature", 0.5}}), key).status, 400) << "now it is bound";
}

TEST_F(LimitsTest, WithoutApiKeysTwoClientsMayChooseOneIdempotencyKey) {
  Start();
  const TestClient::Headers key = {{"Idempotency-Key", "k"}};
  EXPECT_EQ(Post(kChat, ChatBody(), key).status, 200);
  EXPECT_EQ(Post(kChat, ChatBody({{"temperature", 0.5}}), key).status, 200);
  const std::vector<EngineRequest> r = worker_->submitted();
  ASSERT_EQ(r.size(), 2u);
  EXPECT_FALSE(r[0].work_id.empty());
  EXPECT_NE(r[0].work_id, r[1].work_id);
}

TEST_F(LimitsTest, AProfileIsAChromeTraceOfTheNextSteps) {
  options_.debug_endpoints = true;
  Start();
  const ClientResponse response = Post("/profile", {{"num_steps", 3}});
  ASSERT_EQ(response.status, 200) << response.body;
  const json::value trace = ParseBody(response);
  std::map<std::string, int64_t> duration_us;
  int64_t last_step = -1;
  for (const json::value& event : trace.at("traceEvents").as_array()) {
    if (event.at("ph").as_string() != "X") continue;
    const std::string name(event.at("name").as_string());
    duration_us[name] += event.at("dur").as_int64();
    last_step = event.at("args").at("step").as_int64();
    EXPECT_EQ(event.at("tid").as_int64(), name == "plan" || name == "process" ? 1 : 2) << name;
    EXPECT_LT(event.at("ts").as_int64(), 30'000) << "times begin with the first step";
  }
  EXPECT_EQ(last_step, 2);
  const std::map<std::string, int64_t> want = {
      {"plan", 60}, {"copy", 3}, {"model", 3 * 8969}, {"sample", 300}, {"process", 120}};
  EXPECT_EQ(duration_us, want);
  EXPECT_EQ(Post("/profile", {{"num_steps", 51}}).status, 400);
  EXPECT_EQ(Post("/profile", {{"worker", 1}}).status, 400);
}

TEST_F(LimitsTest, DebugRoutesAreForAdminsAndOffByDefault) {
  const std::string_view keys =
      R"({"name":"a","key":"plain"},{"name":"b","key":"root","admin":true})";
  StartWithKeys(keys);
  EXPECT_EQ(PostText("/profile", "", {{"x-api-key", "root"}}).status, 404);
  server_->Stop();
  options_.debug_endpoints = true;
  StartWithKeys(keys);
  EXPECT_EQ(PostText("/profile", "").status, 401);
  EXPECT_EQ(PostText("/profile", "", {{"x-api-key", "plain"}}).status, 403);
  EXPECT_EQ(PostText("/profile", "", {{"x-api-key", "root"}}).status, 200);
}

}  // namespace
}  // namespace deepinfer
