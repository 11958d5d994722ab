// The HTTP layer below the routes: framing, limits, time-outs, disconnects.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <thread>
#include <vector>

#include "integration/server/test_client.h"
#include "server/http.h"
#include "support/self_signed.h"
#include "support/temp_dir.h"

namespace deepinfer {
namespace {

using std::chrono::milliseconds;
using testing::ClientResponse;
using testing::TestClient;

// Answers by path; "/hold" keeps the exchange for the test to drive.
class EchoHandler : public HttpHandler {
 public:
  std::optional<HttpResponse> Admit(HttpRequest& request) override {
    if (request.path == "/refuse") return Error(request, 404, "unknown_url", "no");
    request.answer_headers.push_back({"x-admitted", "yes"});
    return std::nullopt;
  }

  void Handle(std::shared_ptr<HttpExchange> exchange) override {
    const HttpRequest& request = exchange->request();
    if (request.path == "/hold") {
      exchange->OnDisconnect([this] { Note(&disconnects_); });
      std::lock_guard lock(mutex_);
      held_.push_back(std::move(exchange));
      changed_.notify_all();
      return;
    }
    if (request.path == "/stream") {
      exchange->StartStream({.status = 200, .content_type = "text/event-stream"});
      for (const char* event : {"data: 1\n\n", "data: 2\n\n", "data: 3\n\n"}) exchange->Send(event);
      exchange->Finish();
      return;
    }
    exchange->Respond({.status = 200, .body = request.method + " " + request.body});
  }

  void Done(const HttpRequest&, const HttpOutcome& outcome) override {
    std::lock_guard lock(mutex_);
    outcomes_.push_back(outcome);
    changed_.notify_all();
  }

  HttpResponse Error(const HttpRequest&, int status, std::string_view code,
                     std::string_view) override {
    return {.status = status, .body = std::string(code)};
  }

  std::shared_ptr<HttpExchange> WaitHeld() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, milliseconds(5000), [&] { return !held_.empty(); }))
      return nullptr;
    auto exchange = held_.back();
    held_.pop_back();
    return exchange;
  }

  bool WaitDisconnects(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, milliseconds(5000), [&] { return disconnects_ >= count; });
  }

  std::optional<HttpOutcome> WaitOutcome(size_t count) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, milliseconds(5000), [&] { return outcomes_.size() >= count; })) {
      return std::nullopt;
    }
    return outcomes_[count - 1];
  }

 private:
  void Note(int* counter) {
    std::lock_guard lock(mutex_);
    ++*counter;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<HttpExchange>> held_;
  std::vector<HttpOutcome> outcomes_;
  int disconnects_ = 0;
};

class HttpServerTest : public ::testing::Test {
 protected:
  HttpServerTest() {
    options_.port = 0;
    options_.max_body_bytes = 1 << 20;
    options_.header_timeout = milliseconds(300);
    options_.idle_timeout = milliseconds(5000);
    options_.body_progress_timeout = milliseconds(300);
  }

  void Start() {
    auto server = HttpServer::Start(options_, &handler_);
    ASSERT_TRUE(server.ok()) << server.status().ToString();
    server_ = *std::move(server);
  }

  EchoHandler handler_;
  HttpServerOptions options_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, KeepsTheConnectionOverSeveralRequests) {
  Start();
  TestClient client(server_->port());
  for (int i = 0; i < 3; ++i) {
    const auto response = client.Request("POST", "/echo", "body" + std::to_string(i));
    ASSERT_TRUE(response);
    EXPECT_EQ(response->status, 200);
    EXPECT_EQ(response->body, "POST body" + std::to_string(i));
    EXPECT_EQ(response->headers.at("x-admitted"), "yes");
  }
}

TEST_F(HttpServerTest, AnswersPipelinedRequestsInOrder) {
  Start();
  TestClient client(server_->port());
  client.SendRaw(
      "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nA"
      "POST /b HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nB");
  EXPECT_EQ(client.ReadResponse()->body, "POST A");
  EXPECT_EQ(client.ReadResponse()->body, "POST B");
}

TEST_F(HttpServerTest, RequestPipelinedBehindARunningOneIsServedNext) {
  Start();
  TestClient client(server_->port());
  client.Send("GET", "/hold");
  auto held = handler_.WaitHeld();
  ASSERT_TRUE(held);
  client.Send("POST", "/next", "N");
  held->Respond({.status = 200, .body = "first"});
  EXPECT_EQ(client.ReadResponse()->body, "first");
  EXPECT_EQ(client.ReadResponse()->body, "POST N");
}

TEST_F(HttpServerTest, ReadsChunkedBodies) {
  Start();
  TestClient client(server_->port());
  client.SendRaw(
      "POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3\r\nabc\r\n");
  client.SendRaw("2\r\nde\r\n0\r\n\r\n");
  EXPECT_EQ(client.ReadResponse()->body, "POST abcde");
}

TEST_F(HttpServerTest, ReadsABodySentInSmallPieces) {
  Start();
  TestClient client(server_->port());
  const std::string body(200'000, 'x');
  client.SendRaw("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n");
  for (size_t i = 0; i < body.size(); i += 7'001) client.SendRaw(body.substr(i, 7'001));
  EXPECT_EQ(client.ReadResponse()->body, "POST " + body);
}

TEST_F(HttpServerTest, AnswersExpectContinueBeforeTheBody) {
  Start();
  TestClient client(server_->port());
  client.SendRaw(
      "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.ReadHead()->status, 100);
  client.SendRaw("ok");
  EXPECT_EQ(client.ReadResponse()->body, "POST ok");
}

TEST_F(HttpServerTest, RefusesWithoutAskingForTheBody) {
  Start();
  TestClient client(server_->port());
  client.SendRaw(
      "POST /refuse HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  const auto response = client.ReadResponse();
  EXPECT_EQ(response->status, 404);
  EXPECT_EQ(response->headers.at("connection"), "close");
  EXPECT_TRUE(client.WaitForClose());
}

TEST_F(HttpServerTest, HeadHasLengthButNoBody) {
  Start();
  TestClient client(server_->port());
  const auto head = client.Request("HEAD", "/a");
  ASSERT_TRUE(head);
  EXPECT_EQ(head->headers.at("content-length"), "5");
  EXPECT_EQ(client.Request("GET", "/a")->body, "GET ");
}

TEST_F(HttpServerTest, BodyOverTheLimitIs413) {
  Start();
  {
    TestClient client(server_->port());
    client.SendRaw("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n");
    EXPECT_EQ(client.ReadResponse()->status, 413);
  }
  TestClient client(server_->port());
  client.SendRaw("POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  const std::string piece = "10000\r\n" + std::string(0x10000, 'y') + "\r\n";
  for (int i = 0; i < 20; ++i) client.SendRaw(piece);
  EXPECT_EQ(client.ReadResponse()->status, 413);
}

TEST_F(HttpServerTest, BodyOfExactlyTheLimitIsAccepted) {
  Start();
  TestClient client(server_->port());
  const auto response = client.Request("POST", "/a", std::string(options_.max_body_bytes, 'z'));
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 200);
  EXPECT_EQ(response->body.size(), options_.max_body_bytes + 5);
}

TEST_F(HttpServerTest, LimitsHeaderBytesAndFields) {
  Start();
  {
    TestClient client(server_->port());
    client.SendRaw("GET /a HTTP/1.1\r\nHost: x\r\nBig: " + std::string(70'000, 'h') + "\r\n\r\n");
    const auto response = client.ReadResponse();
    ASSERT_TRUE(response);
    EXPECT_EQ(response->status, 413);
    EXPECT_EQ(response->body, "request_too_large");
  }
  TestClient client(server_->port());
  std::string many = "GET /a HTTP/1.1\r\nHost: x\r\n";
  for (int i = 0; i < 100; ++i) many.append("H").append(std::to_string(i)).append(": v\r\n");
  client.SendRaw(many + "\r\n");
  EXPECT_EQ(client.ReadResponse()->status, 400);
}

TEST_F(HttpServerTest, GarbageIs400) {
  Start();
  for (const char* bytes :
       {"garbage\r\n\r\n", "GET  /a HTTP/1.1\r\n\r\n", "GET /a HTTP/7.1\r\n\r\n",
        "POST /a HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        "POST /a HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "GET /a HTTP/1.1\r\nBad header\r\n\r\n"}) {
    TestClient client(server_->port());
    client.SendRaw(bytes);
    const auto response = client.ReadResponse();
    ASSERT_TRUE(response) << bytes;
    EXPECT_EQ(response->status, 400) << bytes;
  }
}

TEST_F(HttpServerTest, SlowHeaderIsCutOff) {
  Start();
  TestClient client(server_->port());
  client.SendRaw("GET /a HTTP/1.1\r\nHo");
  EXPECT_TRUE(client.WaitForClose());
}

TEST_F(HttpServerTest, StalledBodyIsCutOff) {
  Start();
  TestClient client(server_->port());
  client.SendRaw("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc");
  EXPECT_TRUE(client.WaitForClose());
}

TEST_F(HttpServerTest, IdleConnectionIsClosed) {
  options_.idle_timeout = milliseconds(200);
  Start();
  TestClient client(server_->port());
  EXPECT_EQ(client.Request("GET", "/a")->status, 200);
  EXPECT_TRUE(client.WaitForClose());
}

class TlsServerTest : public HttpServerTest {
 protected:
  TlsServerTest() {
    const SecurityPtr pem = SelfSigned("DNS:localhost");
    options_.tls.certificate_file = Write("certificate.pem", pem->certificate);
    options_.tls.key_file = Write("key.pem", pem->key);
  }

  std::string Write(const char* name, const std::string& text) {
    std::ofstream(folder_.File(name)) << text;
    return folder_.File(name);
  }

  TempDir folder_;
};

TEST_F(TlsServerTest, AHandshakeThatStallsIsCutOff) {
  Start();
  TestClient silent(server_->port());
  EXPECT_TRUE(silent.WaitForClose());
  TestClient half(server_->port());
  // A record of a hello, and the first bytes of it.
  half.SendRaw(std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11));
  EXPECT_TRUE(half.WaitForClose());
}

TEST_F(TlsServerTest, PlainBytesAreDropped) {
  Start();
  TestClient client(server_->port());
  client.Send("GET", "/a");
  EXPECT_FALSE(client.ReadResponse());
}

TEST_F(TlsServerTest, AUnixSocketStaysPlain) {
  options_.uds_path = folder_.File("socket");
  Start();
  EXPECT_EQ(TestClient(options_.uds_path).Request("GET", "/a")->status, 200);
}

TEST_F(HttpServerTest, RequestIdIsEchoedOrMade) {
  Start();
  TestClient client(server_->port());
  auto response = client.Request("GET", "/a", {}, {{"X-Request-Id", "my.id:1_-"}});
  EXPECT_EQ(response->headers.at("x-request-id"), "my.id:1_-");
  EXPECT_EQ(response->headers.at("request-id"), "my.id:1_-");
  EXPECT_EQ(response->headers.at("server").substr(0, 10), "deepinfer/");
  const std::string too_long(129, 'a');
  for (const std::string_view bad :
       {std::string_view("a b"), std::string_view(too_long), std::string_view("x/y")}) {
    response = client.Request("GET", "/a", {}, {{"X-Request-Id", bad}});
    EXPECT_NE(response->headers.at("x-request-id"), bad);
    EXPECT_EQ(response->headers.at("x-request-id").size(), 28u);
  }
}

TEST_F(HttpServerTest, EachStreamedEventIsOneChunk) {
  Start();
  TestClient client(server_->port());
  const auto response = client.Request("GET", "/stream");
  ASSERT_TRUE(response);
  EXPECT_EQ(response->chunks,
            (std::vector<std::string>{"data: 1\n\n", "data: 2\n\n", "data: 3\n\n"}));
  EXPECT_EQ(client.Request("GET", "/a")->status, 200);
}

TEST_F(HttpServerTest, StreamsToHttp10WithoutChunks) {
  Start();
  TestClient client(server_->port());
  client.SendRaw("GET /stream HTTP/1.0\r\n\r\n");
  const auto response = client.ReadResponse();
  EXPECT_FALSE(response->headers.contains("transfer-encoding"));
  EXPECT_EQ(response->body, "data: 1\n\ndata: 2\n\ndata: 3\n\n");
}

TEST_F(HttpServerTest, KeepAliveCommentComesOnlyBeforeTheFirstEvent) {
  Start();
  TestClient client(server_->port());
  client.Send("GET", "/hold");
  auto held = handler_.WaitHeld();
  ASSERT_TRUE(held);
  held->SetKeepAlive(": keep-alive\n\n", milliseconds(30));
  held->StartStream({.status = 200, .content_type = "text/event-stream"});
  ASSERT_TRUE(client.ReadHead());
  EXPECT_EQ(client.ReadChunk(), ": keep-alive\n\n");
  EXPECT_EQ(client.ReadChunk(), ": keep-alive\n\n");
  held->Send("data: x\n\n");
  std::optional<std::string> chunk;
  while ((chunk = client.ReadChunk()) == ": keep-alive\n\n") {
  }
  EXPECT_EQ(chunk, "data: x\n\n");
  std::this_thread::sleep_for(milliseconds(100));
  held->Finish();
  EXPECT_EQ(client.ReadChunk(), std::nullopt);
}

TEST_F(HttpServerTest, ClientThatLeavesIsNoticed) {
  Start();
  const auto leave = [&](auto how, bool stream, size_t nth) {
    TestClient client(server_->port());
    client.Send("GET", "/hold");
    auto held = handler_.WaitHeld();
    ASSERT_TRUE(held);
    if (stream) {
      held->StartStream({.status = 200, .content_type = "text/event-stream"});
      ASSERT_TRUE(client.ReadHead());
    }
    how(client);
    EXPECT_TRUE(handler_.WaitDisconnects(static_cast<int>(nth)));
    EXPECT_TRUE(held->disconnected());
    const auto outcome = handler_.WaitOutcome(nth);
    ASSERT_TRUE(outcome);
    EXPECT_TRUE(outcome->client_gone);
    EXPECT_EQ(outcome->status, stream ? 200 : 499);
    held->Respond({.status = 200});  // too late: ignored
  };
  size_t nth = 0;
  for (const bool stream : {false, true}) {
    leave([](TestClient& client) { client.Close(); }, stream, ++nth);
    leave([](TestClient& client) { client.Reset(); }, stream, ++nth);
    leave([](TestClient& client) { client.HalfClose(); }, stream, ++nth);
  }
}

TEST_F(HttpServerTest, ClientThatStopsReadingIsCutOff) {
  options_.write_progress_timeout = milliseconds(200);
  Start();
  TestClient client(server_->port());
  client.Send("GET", "/hold");
  auto held = handler_.WaitHeld();
  ASSERT_TRUE(held);
  held->StartStream({.status = 200, .content_type = "text/event-stream"});
  for (int i = 0; i < 64; ++i) held->Send(std::string(1 << 20, 'x'));
  EXPECT_TRUE(handler_.WaitDisconnects(1));
}

TEST_F(HttpServerTest, ConnectionsOverTheLimitGet503) {
  options_.max_connections = 2;
  Start();
  TestClient first(server_->port());
  TestClient second(server_->port());
  ASSERT_EQ(first.Request("GET", "/a")->status, 200);
  ASSERT_EQ(second.Request("GET", "/a")->status, 200);
  TestClient third(server_->port());
  const auto response = third.ReadResponse();
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 503);
  EXPECT_EQ(response->body, "server_overloaded");
  EXPECT_EQ(first.Request("GET", "/a")->status, 200);
}

TEST_F(HttpServerTest, ServesAUnixSocket) {
  const TempDir folder;
  options_.uds_path = folder.File("http.sock");
  Start();
  TestClient client(options_.uds_path);
  EXPECT_EQ(client.Request("POST", "/a", "u")->body, "POST u");
}

TEST_F(HttpServerTest, DrainClosesIdleConnectionsAndWaitsForRunningOnes) {
  Start();
  TestClient idle(server_->port());
  ASSERT_EQ(idle.Request("GET", "/a")->status, 200);
  TestClient busy(server_->port());
  busy.Send("GET", "/hold");
  auto held = handler_.WaitHeld();
  ASSERT_TRUE(held);
  server_->SetDraining();
  EXPECT_TRUE(idle.WaitForClose());
  EXPECT_FALSE(server_->WaitIdle(std::chrono::steady_clock::now()));
  TestClient probe(server_->port());
  const auto answer = probe.Request("GET", "/a");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->headers.at("connection"), "close");
  held->Respond({.status = 200, .body = "late"});
  const auto response = busy.ReadResponse();
  EXPECT_EQ(response->body, "late");
  EXPECT_TRUE(server_->WaitIdle(std::chrono::steady_clock::now() + milliseconds(5000)));
}

TEST_F(HttpServerTest, StopEndsRunningExchanges) {
  Start();
  TestClient client(server_->port());
  client.Send("GET", "/hold");
  auto held = handler_.WaitHeld();
  ASSERT_TRUE(held);
  server_->Stop();
  EXPECT_TRUE(held->disconnected());
  EXPECT_TRUE(client.WaitForClose());
  held->Respond({.status = 200});
}

TEST_F(HttpServerTest, ManyClientsAtOnce) {
  Start();
  std::atomic<int> ok{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      TestClient client(server_->port());
      for (int i = 0; i < 50; ++i) {
        const std::string body = std::to_string(t * 1000 + i);
        const auto response = client.Request("POST", "/a", body);
        if (response && response->body == "POST " + body) ++ok;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ok, 400);
}

TEST(IsLoopbackHost, TellsLoopbackFromOthers) {
  for (const char* host : {"127.0.0.1", "127.1.2.3", "::1", "localhost"}) {
    EXPECT_TRUE(IsLoopbackHost(host)) << host;
  }
  for (const char* host : {"0.0.0.0", "::", "10.0.0.1", "example.org", ""}) {
    EXPECT_FALSE(IsLoopbackHost(host)) << host;
  }
}

}  // namespace
}  // namespace deepinfer
