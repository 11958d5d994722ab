// Loading, probes, disconnects, drain and stop (api.md §5, §15, §20).
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <thread>
#include <utility>

#include "base/log.h"
#include "integration/server/server_fixture.h"
#include "support/temp_dir.h"
#include "support/wait_until.h"

namespace deepinfer {
namespace {

using namespace testing;  // NOLINT: the helpers of this folder
using std::chrono::milliseconds;

constexpr std::string_view kChat = "/v1/chat/completions";

class LifecycleTest : public ServerTest {
 protected:
  // A request that runs until it is cancelled.
  std::string EndlessBody(bool stream) {
    worker_->SetOutput(Encode("word "), /*endless=*/true);
    worker_->SetNeverFinish(true);
    return json::serialize(ChatBody({{"stream", stream}, {"max_tokens", 400}}));
  }
};

TEST_F(LifecycleTest, LoadingIsReportedUntilTheModelIsAttached) {
  Start(/*attach=*/false);
  progress_.Set(LoadPhase::kWeights, 250, 1000);
  EXPECT_EQ(Get("/live").status, 200);
  for (const char* path : {"/health", "/v1/health", "/ping", "/ready"}) {
    const ClientResponse response = Get(path);
    EXPECT_EQ(response.status, 503) << path;
    const json::value body = ParseBody(response);
    EXPECT_EQ(body.at("error").at("code").as_int64(), 503);
    EXPECT_EQ(body.at("error").at("type").as_string(), "unavailable_error");
    EXPECT_EQ(body.at("error").at("message").as_string(), "Loading model");
    EXPECT_EQ(body.at("phase").as_string(), "weights");
    EXPECT_EQ(body.at("done").as_int64(), 250);
    EXPECT_EQ(body.at("total").as_int64(), 1000);
  }
  const ClientResponse refused = Post(kChat, ChatBody());
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(ErrorCode(refused), "server_overloaded");
  EXPECT_EQ(ParseBody(refused).at("error").at("message").as_string(), "Loading model");
  EXPECT_EQ(ParseBody(refused).at("done").as_int64(), 250);
  EXPECT_TRUE(refused.headers.contains("retry-after"));
  EXPECT_EQ(Get("/version").status, 200);
  EXPECT_EQ(Get("/metrics").status, 200);
  Attach();
  EXPECT_EQ(ParseBody(Get("/health")).at("status").as_string(), "ok");
  EXPECT_EQ(Get("/ready").status, 200);
  ExpectAlive();
}

TEST_F(LifecycleTest, FailedLoadStaysUnavailableWithoutDetails) {
  Start(/*attach=*/false);
  server_->SetFailed(DataCorruption("/secret/path is broken"));
  for (const char* path : {"/health", "/ready"}) {
    const ClientResponse response = Get(path);
    EXPECT_EQ(response.status, 503);
    EXPECT_EQ(response.body.find("secret"), std::string::npos);
  }
  EXPECT_EQ(Get("/live").status, 200);
  EXPECT_EQ(Post(kChat, ChatBody()).status, 503);
}

TEST_F(LifecycleTest, ProbesAnswerWhileEveryStreamThreadIsBusy) {
  Start();
  worker_->BlockSubmit();
  std::vector<std::unique_ptr<TestClient>> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(std::make_unique<TestClient>(port()));
    clients.back()->Send("POST", kChat, json::serialize(ChatBody()));
  }
  EXPECT_TRUE(worker_->WaitSubmitted(static_cast<size_t>(options_.stream_threads)));
  for (const char* path : {"/live", "/health", "/ready", "/ping", "/version", "/metrics"}) {
    EXPECT_EQ(Get(path).status, 200) << path;
  }
  worker_->UnblockSubmit();
  for (auto& client : clients) EXPECT_EQ(client->ReadResponse()->status, 200);
}

TEST_F(LifecycleTest, HealthGenerateRunsOneTokenAndRemembersIt) {
  Start();
  EXPECT_EQ(Get("/health_generate").status, 200);
  EXPECT_EQ(Get("/health_generate").status, 200);
  const auto submitted = worker_->submitted();
  ASSERT_EQ(submitted.size(), 1u);
  EXPECT_EQ(submitted[0].sampling.max_tokens, 1);
}

TEST_F(LifecycleTest, HealthGenerateReportsAnEngineThatFails) {
  Start();
  worker_->SetSubmitStatus(Internal("broken"));
  EXPECT_EQ(Get("/health_generate").status, 503);
}

TEST_F(LifecycleTest, E01_ClientGoneStopsTheWork) {
  Start();
  size_t cancelled = 0;
  for (const bool stream : {false, true}) {
    for (const int way : {0, 1, 2}) {
      TestClient client(port());
      client.Send("POST", kChat, EndlessBody(stream));
      ASSERT_TRUE(worker_->WaitSubmitted(cancelled + 1));
      if (stream) {
        ASSERT_TRUE(client.ReadHead());
        ASSERT_TRUE(client.ReadChunk());
      }
      if (way == 0) client.Close();
      if (way == 1) client.Reset();
      if (way == 2) client.HalfClose();
      EXPECT_TRUE(worker_->WaitCancelled(++cancelled)) << stream << way;
    }
  }
  worker_->SetNeverFinish(false);
  ExpectAlive();
}

TEST_F(LifecycleTest, E02_DisconnectBeforeTheFirstTokenManyTimes) {
  Start();
  worker_->Hold();
  for (size_t i = 0; i < 50; ++i) {
    TestClient client(port());
    client.Send("POST", kChat, json::serialize(ChatBody({{"stream", i % 2 == 0}, {"n", 2}})));
    ASSERT_TRUE(worker_->WaitSubmitted(2 * (i + 1)));
    client.Close();
    ASSERT_TRUE(worker_->WaitCancelled(2 * (i + 1)));
  }
  worker_->Release();
  ExpectAlive();
}

TEST_F(LifecycleTest, E04_StreamClosedAfterTheFirstChunkCountsAsCancelled) {
  Start();
  {
    TestClient client(port());
    client.Send("POST", kChat, EndlessBody(true));
    ASSERT_TRUE(client.ReadHead());
    ASSERT_TRUE(client.ReadChunk());
  }
  EXPECT_TRUE(worker_->WaitCancelled(1));
  EXPECT_TRUE(worker_->WaitIdle());
  worker_->SetNeverFinish(false);
  server_->Drain(std::chrono::steady_clock::now() + std::chrono::seconds(10));
  const std::string text = Get("/metrics").body;
  EXPECT_NE(text.find(R"(deepinfer:requests_total{engine="0",model_name="test-model",role="all",)"
                      R"(outcome="cancelled"} 1)"),
            std::string::npos)
      << text;
}

TEST_F(LifecycleTest, LogLineHasTheKeysAndNoText) {
  options_.log_requests = LogRequests::kMeta;
  options_.api_keys = {"top-secret-key"};
  SetText("generated words");
  ::testing::internal::CaptureStderr();
  InitLogging(LogLevel::kInfo, LogFormat::kJson);
  Start();
  const json::object body =
      ChatBody({{"messages", {{{"role", "user"}, {"content", "private words"}}}}});
  EXPECT_EQ(Post(kChat, body,
                 {{"x-api-key", "top-secret-key"},
                  {"X-Request-Id", "log-1"},
                  {"x-stainless-retry-count", "2"}})
                .status,
            200);
  server_->Stop();
  InitLogging(LogLevel::kOff, LogFormat::kText);
  const std::string log = ::testing::internal::GetCapturedStderr();
  for (const char* secret : {"private", "generated words", "top-secret"}) {
    EXPECT_EQ(log.find(secret), std::string::npos) << log;
  }
  const size_t begin = log.find("{\"ts\"", log.find("server.ready"));
  ASSERT_NE(begin, std::string::npos) << log;
  const json::object line =
      json::parse(log.substr(begin, log.find('\n', begin) - begin)).as_object();
  for (const char* key :
       {"ts", "level", "event", "request_id", "route", "key_name", "status", "model",
        "prompt_tokens", "cached_tokens", "computed_tokens", "completion_tokens", "queue_ms",
        "ttft_ms", "e2e_ms", "finish_reason", "client_retry"}) {
    EXPECT_TRUE(line.contains(key)) << key;
  }
  EXPECT_EQ(line.at("request_id").as_string(), "log-1");
  EXPECT_EQ(line.at("route").as_string(), kChat);
  EXPECT_EQ(line.at("key_name").as_string(), "flag-1");
  EXPECT_EQ(line.at("status").as_int64(), 200);
  EXPECT_EQ(line.at("finish_reason").as_string(), "stop");
  EXPECT_EQ(line.at("client_retry").as_string(), "2");
  EXPECT_EQ(line.at("completion_tokens").as_int64(),
            static_cast<int64_t>(Encode("generated words").size()) + 1);
}

TEST_F(LifecycleTest, E07_ClientsThatTimeOutLeaveNothingBehind) {
  Start();
  worker_->Hold();
  std::vector<std::unique_ptr<TestClient>> clients;
  for (size_t i = 0; i < 100; ++i) {
    clients.push_back(std::make_unique<TestClient>(port()));
    clients.back()->Send("POST", kChat, json::serialize(ChatBody()));
  }
  ASSERT_TRUE(worker_->WaitSubmitted(100));
  clients.clear();
  EXPECT_TRUE(worker_->WaitCancelled(100));
  EXPECT_TRUE(worker_->WaitIdle());
  worker_->Release();
  ExpectAlive();
}

TEST_F(LifecycleTest, J07_KeepAliveCommentsUntilTheFirstToken) {
  options_.sse_ping_interval = milliseconds(20);
  Start();
  worker_->Hold();
  TestClient client(port());
  client.Send("POST", kChat, json::serialize(ChatBody({{"stream", true}})));
  ASSERT_TRUE(client.ReadHead());
  EXPECT_EQ(client.ReadChunk(), ": keep-alive\n\n");
  EXPECT_EQ(client.ReadChunk(), ": keep-alive\n\n");
  worker_->Release();
  bool seen_data = false;
  while (const std::optional<std::string> chunk = client.ReadChunk()) {
    if (chunk->starts_with("data: ")) seen_data = true;
    if (seen_data) {
      EXPECT_TRUE(chunk->starts_with("data: ")) << *chunk;
    }
  }
  EXPECT_TRUE(seen_data);
}

TEST_F(LifecycleTest, NoCommentsWhenPingIsOff) {
  options_.sse_ping_interval = milliseconds(-1);
  Start();
  worker_->Hold();
  TestClient client(port());
  client.Send("POST", kChat, json::serialize(ChatBody({{"stream", true}})));
  ASSERT_TRUE(client.ReadHead());
  std::this_thread::sleep_for(milliseconds(60));
  worker_->Release();
  const std::optional<std::string> chunk = client.ReadChunk();
  ASSERT_TRUE(chunk);
  EXPECT_TRUE(chunk->starts_with("data: ")) << *chunk;
}

TEST_F(LifecycleTest, DrainFinishesWhatRunsAndRefusesTheRest) {
  Start();
  worker_->Hold();
  TestClient running(port());
  running.Send("POST", kChat, json::serialize(ChatBody({{"stream", true}})));
  ASSERT_TRUE(worker_->WaitSubmitted(1));
  std::thread drain(
      [&] { server_->Drain(std::chrono::steady_clock::now() + std::chrono::seconds(30)); });
  SpinUntil("a server that drains", [&] { return Get("/ready").status == 503; });
  EXPECT_EQ(Get("/health").status, 200);
  const ClientResponse refused = Post(kChat, ChatBody());
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(ErrorCode(refused), "server_overloaded");
  EXPECT_TRUE(refused.headers.contains("retry-after"));
  worker_->Release();
  const auto response = running.ReadResponse();
  drain.join();
  ASSERT_TRUE(response);
  EXPECT_EQ(JoinDeltas(ParseEvents(*response), "content"), "Hello there.");
}

TEST_F(LifecycleTest, DrainThatRunsOutOfTimeEndsStreamsWithAnError) {
  Start();
  TestClient client(port());
  client.Send("POST", kChat, EndlessBody(true));
  ASSERT_TRUE(client.ReadHead());
  ASSERT_TRUE(client.ReadChunk());
  server_->Drain(std::chrono::steady_clock::now() + milliseconds(50));
  std::string last;
  std::string before_last;
  while (const std::optional<std::string> chunk = client.ReadChunk()) {
    before_last = std::exchange(last, *chunk);
  }
  EXPECT_EQ(last, "data: [DONE]\n\n");
  EXPECT_TRUE(before_last.starts_with("data: {\"error\":")) << before_last;
}

TEST_F(LifecycleTest, StopCancelsWhatRuns) {
  Start();
  TestClient stream(port());
  stream.Send("POST", kChat, EndlessBody(true));
  TestClient whole(port());
  whole.Send("POST", kChat, EndlessBody(false));
  ASSERT_TRUE(worker_->WaitSubmitted(2));
  server_->Stop();
  EXPECT_EQ(worker_->cancelled().size(), 2u);
  EXPECT_TRUE(whole.WaitForClose());
}

TEST_F(LifecycleTest, KeyConcurrencyIsLimitedAndGivenBack) {
  const TempDir folder;
  options_.api_key_file = folder.Write(
      "keys.json", R"({"keys":[{"name":"a","key":"k","max_concurrent_requests":1,)"
                   R"("models":["test-model"]},{"name":"b","key":"other","models":["none"]}]})");
  Start();
  worker_->Hold();
  TestClient first(port());
  first.Send("POST", kChat, json::serialize(ChatBody()), {{"x-api-key", "k"}});
  ASSERT_TRUE(worker_->WaitSubmitted(1));
  const ClientResponse refused = Post(kChat, ChatBody(), {{"x-api-key", "k"}});
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(ErrorCode(refused), "rate_limit_exceeded");
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  worker_->Release();
  EXPECT_EQ(first.ReadResponse()->status, 200);
  // The place is free again before the client sees the end of its answer.
  EXPECT_EQ(first.Request("POST", kChat, json::serialize(ChatBody()), {{"x-api-key", "k"}})->status,
            200);
  const ClientResponse forbidden = Post(kChat, ChatBody(), {{"x-api-key", "other"}});
  EXPECT_EQ(forbidden.status, 403);
  EXPECT_EQ(ParseBody(forbidden).at("error").at("type").as_string(), "permission_error");
}

TEST_F(LifecycleTest, RequestIdComesBackOnAnswersAndErrors) {
  Start();
  for (const char* path : {"/health", "/nothing"}) {
    EXPECT_EQ(Get(path, {{"X-Request-Id", "abc-1"}}).headers.at("x-request-id"), "abc-1");
  }
  const ClientResponse stream =
      Post(kChat, ChatBody({{"stream", true}}), {{"X-Request-Id", "same"}});
  EXPECT_EQ(stream.headers.at("request-id"), "same");
  // Two live requests may share a client's id.
  worker_->Hold();
  TestClient a(port());
  TestClient b(port());
  for (TestClient* client : {&a, &b}) {
    client->Send("POST", kChat, json::serialize(ChatBody()), {{"X-Request-Id", "same"}});
  }
  ASSERT_TRUE(worker_->WaitSubmitted(3));
  worker_->Release();
  EXPECT_EQ(a.ReadResponse()->status, 200);
  EXPECT_EQ(b.ReadResponse()->status, 200);
}

TEST_F(LifecycleTest, A07_ManyStreamsKeepTheirOwnText) {
  Start();
  worker_->SetCommit(3);
  worker_->SetOutputOf([](const EngineRequest& request) {
    std::vector<int32_t> output(request.prompt_ids.begin() + 2, request.prompt_ids.end() - 2);
    output.push_back(1);
    return output;
  });
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int t = 0; t < 16; ++t) {
    threads.emplace_back([&, t] {
      TestClient client(port());
      for (int i = 0; i < 6; ++i) {
        const std::string text = "message " + std::to_string(t) + " part " + std::to_string(i);
        const json::object body =
            ChatBody({{"messages", {{{"role", "user"}, {"content", text}}}}, {"stream", true}});
        const auto response = client.Request("POST", kChat, json::serialize(body));
        if (response && JoinDeltas(ParseEvents(*response), "content") == text) ++right;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 96);
}

}  // namespace
}  // namespace deepinfer
