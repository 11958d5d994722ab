// /v1/messages over real sockets: answers, event sequence, usage, errors in Anthropic's shape.
#include <gtest/gtest.h>

#include <algorithm>

#include "economics/ledger_files.h"
#include "integration/server/server_fixture.h"
#include "support/temp_dir.h"

namespace deepinfer {
namespace {

using namespace testing;  // NOLINT: the helpers of this folder

constexpr std::string_view kPath = "/v1/messages";

struct Event {
  std::string name;
  json::value data;
};

class MessagesTest : public ServerTest {
 protected:
  static json::object Body(const json::object& more = {}) {
    json::object body{{"model", kModel},
                      {"max_tokens", 100},
                      {"messages", {{{"role", "user"}, {"content", "Hi"}}}},
                      {"thinking", {{"type", "disabled"}}}};
    for (const auto& member : more) body[member.key()] = member.value();
    return body;
  }

  static json::array Tools() {
    return {
        {{"name", "f"},
         {"input_schema", {{"type", "object"}, {"properties", {{"a", {{"type", "string"}}}}}}}}};
  }

  // Each chunk is one complete event whose name is its type.
  static std::vector<Event> Events(const ClientResponse& response) {
    std::vector<Event> events;
    EXPECT_EQ(response.status, 200) << response.body;
    for (const std::string& chunk : response.chunks) {
      const size_t line = chunk.find('\n');
      const bool framed = chunk.starts_with("event: ") && chunk.ends_with("}\n\n") &&
                          chunk.compare(line, 7, "\ndata: ") == 0;
      EXPECT_TRUE(framed) << chunk;
      if (!framed) continue;
      events.push_back({chunk.substr(7, line - 7), json::parse(chunk.substr(line + 7))});
      EXPECT_EQ(events.back().data.at("type").as_string(), events.back().name);
    }
    return events;
  }
};

TEST_F(MessagesTest, StreamAndBodyAreTheSameMessage) {
  Start();
  SetText(
      "Think.</think>\n\nGrüße.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n"
      "<｜DSML｜ parameter name=\"a\" string=\"true\">x</｜DSML｜ parameter>\n"
      "</｜DSML｜ invoke>\n</｜DSML｜ calls>");
  worker_->SetCached(2);
  const json::object request = Body({{"tools", Tools()}, {"thinking", {{"type", "enabled"}}}});
  const json::value whole = ParseBody(Post(kPath, request));
  for (const int commit : {1, 3, 0}) {
    worker_->SetCommit(commit);
    json::object streamed = request;
    streamed["stream"] = true;
    const std::vector<Event> events = Events(Post(kPath, streamed));
    ASSERT_GT(events.size(), 6u);
    EXPECT_EQ(events.front().name, "message_start");
    EXPECT_EQ(events.back().name, "message_stop");
    json::object message = events.front().data.at("message").as_object();
    EXPECT_EQ(message.at("usage").at("output_tokens").as_int64(), 0);
    json::array content;
    std::string input;
    int64_t num_stops = 0;
    for (const Event& event : events) {
      const json::value& data = event.data;
      if (event.name == "content_block_start") {
        EXPECT_EQ(data.at("index").as_int64(), static_cast<int64_t>(content.size()));
        EXPECT_EQ(num_stops, static_cast<int64_t>(content.size()));
        content.push_back(data.at("content_block"));
      } else if (event.name == "content_block_delta") {
        json::object& block = content.back().as_object();
        for (const auto& member : data.at("delta").as_object()) {
          if (member.key() == "type") continue;
          const std::string piece(member.value().as_string());
          if (member.key() == "partial_json") {
            input += piece;
          } else {
            block[member.key()] = std::string(block[member.key()].as_string()) + piece;
          }
        }
      } else if (event.name == "content_block_stop") {
        ++num_stops;
      } else if (event.name == "message_delta") {
        for (const auto& member : data.at("delta").as_object()) {
          message[member.key()] = member.value();
        }
        message["usage"] = data.at("usage");
      }
    }
    content.back().as_object()["input"] = json::parse(input);
    // Ids are drawn anew for every answer.
    json::object expected = whole.as_object();
    content.back().as_object()["id"] = expected.at("content").as_array().back().at("id");
    content.front().as_object()["signature"] = expected.at("content").at(0).at("signature");
    message["content"] = content;
    message["id"] = expected.at("id");
    EXPECT_EQ(message, expected) << commit;
  }
  EXPECT_EQ(whole.at("stop_reason").as_string(), "tool_use");
  const json::value& usage = whole.at("usage");
  EXPECT_EQ(usage.at("cache_read_input_tokens").as_int64(), 2);
  const auto prompt = static_cast<int64_t>(worker_->submitted()[0].prompt_ids.size());
  EXPECT_EQ(usage.at("input_tokens").as_int64() + 2, prompt);
  EXPECT_GT(usage.at("output_tokens_details").at("thinking_tokens").as_int64(), 0);
  ExpectAlive();
}

TEST_F(MessagesTest, StopReasonsSayWhyTheAnswerEnded) {
  Start();
  SetText("one two three");
  const auto reason = [&](const json::object& more) {
    return json::serialize(ParseBody(Post(kPath, Body(more))).at("stop_reason"));
  };
  EXPECT_EQ(reason({}), "\"end_turn\"");
  EXPECT_EQ(reason({{"max_tokens", 1}}), "\"max_tokens\"");
  EXPECT_EQ(reason({{"stop_sequences", {"two"}}}), "\"stop_sequence\"");
  const json::value stopped = ParseBody(Post(kPath, Body({{"stop_sequences", {"two"}}})));
  EXPECT_EQ(stopped.at("stop_sequence").as_string(), "two");
  EXPECT_EQ(stopped.at("content").at(0).at("text").as_string(), "one ");
  worker_->SetOutput(Encode("x"), /*endless=*/true);
  EXPECT_EQ(reason({{"max_tokens", 300000}}), "\"model_context_window_exceeded\"");
}

TEST_F(MessagesTest, TokensAreCountedAsTheyAreGenerated) {
  Start();
  const json::object request = Body({{"tools", Tools()}, {"system", "S"}});
  const json::value counted = ParseBody(Post("/v1/messages/count_tokens", request));
  const json::value rendered = ParseBody(Post("/anthropic/v1/messages/render", request));
  ASSERT_EQ(Post(kPath, request).status, 200);
  const std::vector<int32_t> prompt = worker_->submitted().at(0).prompt_ids;
  EXPECT_EQ(counted.at("input_tokens").as_int64(), static_cast<int64_t>(prompt.size()));
  EXPECT_EQ(rendered.at("num_tokens").as_int64(), static_cast<int64_t>(prompt.size()));
}

TEST_F(MessagesTest, ZeroTokensWarmTheCacheAndAnswerNothing) {
  Start();
  SetText("never shown");
  for (const int form : {0, 1, 2, 3}) {
    const bool stream = form % 2 == 1;
    const json::value thinking{{"type", form < 2 ? "disabled" : "enabled"}};
    const ClientResponse response =
        Post(kPath, Body({{"max_tokens", 0}, {"stream", stream}, {"thinking", thinking}}));
    ASSERT_EQ(response.status, 200) << response.body;
    EXPECT_EQ(response.body.find("never"), std::string::npos);
    EXPECT_EQ(worker_->submitted().back().sampling.max_tokens, 1);
    if (stream) {
      EXPECT_EQ(response.body.find("content_block"), std::string::npos);
      continue;
    }
    const json::value message = ParseBody(response);
    EXPECT_TRUE(message.at("content").as_array().empty());
    EXPECT_EQ(message.at("stop_reason"), "max_tokens");
    EXPECT_EQ(message.at("usage").at("output_tokens"), 0);
  }
  ExpectAlive();
  EXPECT_EQ(Post("/v1/chat/completions", ChatBody({{"max_tokens", 0}})).status, 400);
}

TEST_F(MessagesTest, ErrorsHaveAnthropicsShape) {
  Start();
  const auto expect = [&](const ClientResponse& response, int status, std::string_view type) {
    EXPECT_EQ(response.status, status) << response.body;
    const json::value body = ParseBody(response);
    EXPECT_EQ(body.at("type").as_string(), "error");
    EXPECT_EQ(body.at("error").at("type").as_string(), type);
    EXPECT_EQ(body.at("request_id").as_string(), response.headers.at("request-id"));
  };
  expect(PostText(kPath, "{"), 400, "invalid_request_error");
  expect(Post(kPath, Body({{"model", "claude-x"}})), 404, "not_found_error");
  expect(Post(kPath, Body({{"messages", json::array()}})), 400, "invalid_request_error");
  expect(Get(kPath), 405, "invalid_request_error");
  expect(Get("/anthropic/v1/nothing"), 404, "not_found_error");
  expect(Get("/v1/nothing", {{"anthropic-version", "2023-06-01"}}), 404, "not_found_error");
  worker_->SetSubmitStatus(ResourceExhausted("full"));
  expect(Post(kPath, Body()), 429, "rate_limit_error");
  worker_->SetSubmitStatus(Unavailable("draining"));
  expect(Post(kPath, Body()), 529, "overloaded_error");
  worker_->SetSubmitStatus(OkStatus());
  EXPECT_EQ(ErrorCode(Post("/v1/chat/completions", json::object())), "missing_required_parameter");
  ExpectAlive();
}

TEST_F(MessagesTest, FailureBehindTheFirstEventIsAnErrorEvent) {
  Start();
  SetText("one two three");
  worker_->SetCommit(1);
  worker_->SetFailure(2, Internal("secret"));
  const std::vector<Event> events = Events(Post(kPath, Body({{"stream", true}})));
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.front().name, "message_start");
  EXPECT_EQ(events.back().name, "error");
  EXPECT_EQ(events.back().data.at("error").at("type").as_string(), "api_error");
  EXPECT_EQ(json::serialize(events.back().data).find("secret"), std::string::npos);
}

// Also of a client that left before its first token: the bill says what the answer would have said.
TEST_F(MessagesTest, CacheWritesAreBilledOnlyWhereSomethingWasMarked) {
  const TempDir dir;
  options_.ledger_folder = dir.path();
  Start();
  worker_->SetCacheWritten(7);
  worker_->Hold();
  size_t count = 0;
  for (const bool marked : {false, true}) {
    TestClient client(port());
    json::object body = Body();
    if (marked) body["cache_control"] = {{"type", "ephemeral"}};
    client.Send("POST", kPath, json::serialize(body));
    ASSERT_TRUE(worker_->WaitSubmitted(++count));
    client.Close();
    ASSERT_TRUE(worker_->WaitCancelled(count));
    ASSERT_TRUE(worker_->WaitIdle());
  }
  server_->Stop();
  std::vector<int64_t> written;
  LedgerReadStats stats;
  const Status status = ReadLedger(
      LedgerFiles(dir.path()).value(),
      [&](const std::string&, const std::string&, const ParsedLine& line) {
        EXPECT_GT(line.ledger.tokens.prompt, 0);
        written.push_back(line.ledger.tokens.cache_written);
        return OkStatus();
      },
      &stats);
  EXPECT_TRUE(status.ok()) << status.ToString();
  std::sort(written.begin(), written.end());
  EXPECT_EQ(written, (std::vector<int64_t>{0, 7}));
}

TEST_F(MessagesTest, PingsFillTheSilenceBeforeTheFirstToken) {
  options_.sse_ping_interval = std::chrono::milliseconds(30);
  Start();
  worker_->Hold();
  TestClient client(port());
  client.Send("POST", kPath, json::serialize(Body({{"stream", true}})));
  ASSERT_TRUE(client.ReadHead());
  EXPECT_EQ(client.ReadChunk(), "event: ping\ndata: {\"type\":\"ping\"}\n\n");
  worker_->Release();
  std::optional<std::string> chunk;
  while ((chunk = client.ReadChunk()) && chunk->starts_with("event: ping")) {
  }
  ASSERT_TRUE(chunk);
  EXPECT_TRUE(chunk->starts_with("event: message_start\n")) << *chunk;
}

}  // namespace
}  // namespace deepinfer
