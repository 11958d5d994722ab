// /v1/responses over real sockets: the response object, the event sequence, failures.
#include <gtest/gtest.h>

#include "integration/server/server_fixture.h"

namespace deepinfer {
namespace {

using namespace testing;  // NOLINT: the helpers of this folder

constexpr std::string_view kPath = "/v1/responses";

class ResponsesTest : public ServerTest {
 protected:
  static json::object Body(const json::object& more = {}) {
    json::object body{{"model", kModel}, {"input", "Hi"}, {"reasoning", {{"effort", "none"}}}};
    for (const auto& member : more) body[member.key()] = member.value();
    return body;
  }

  // The data of every event; names are types, numbers have no gaps.
  static std::vector<json::value> Events(const ClientResponse& response) {
    std::vector<json::value> events;
    EXPECT_EQ(response.status, 200) << response.body;
    for (const std::string& chunk : response.chunks) {
      const size_t line = chunk.find('\n');
      EXPECT_TRUE(chunk.starts_with("event: response.") && chunk.ends_with("}\n\n")) << chunk;
      events.push_back(json::parse(chunk.substr(line + 7)));
      EXPECT_EQ(events.back().at("type").as_string(), chunk.substr(7, line - 7));
      EXPECT_EQ(events.back().at("sequence_number").as_int64(),
                static_cast<int64_t>(events.size()) - 1);
    }
    return events;
  }
};

TEST_F(ResponsesTest, LastEventHoldsTheWholeResponse) {
  Start();
  SetText(
      "First.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"ns::f\">\n"
      "<｜DSML｜ parameter name=\"a\" string=\"true\">x</｜DSML｜ parameter>\n"
      "</｜DSML｜ invoke>\n</｜DSML｜ calls>");
  worker_->SetCached(2);
  const json::object request = Body({{"tools",
                                      {{{"type", "namespace"},
                                        {"name", "ns"},
                                        {"tools", {{{"type", "function"}, {"name", "f"}}}}}}}});
  const json::value whole = ParseBody(Post(kPath, request));
  EXPECT_EQ(whole.at("status").as_string(), "completed");
  ASSERT_EQ(whole.at("output").as_array().size(), 2u);
  EXPECT_EQ(whole.at("output").at(0).at("phase").as_string(), "commentary");
  const json::object& call = whole.at("output").at(1).as_object();
  EXPECT_EQ(call.at("name").as_string(), "f");
  EXPECT_EQ(call.at("namespace").as_string(), "ns");
  EXPECT_EQ(call.at("arguments").as_string(), R"({"a": "x"})");
  EXPECT_EQ(whole.at("usage").at("input_tokens_details").at("cached_tokens").as_int64(), 2);
  json::object streamed = request;
  streamed["stream"] = true;
  for (const int commit : {1, 0}) {
    worker_->SetCommit(commit);
    const std::vector<json::value> events = Events(Post(kPath, streamed));
    ASSERT_GT(events.size(), 4u);
    EXPECT_EQ(events.front().at("type").as_string(), "response.created");
    EXPECT_EQ(events.back().at("type").as_string(), "response.completed");
    json::value last = events.back().at("response");
    EXPECT_EQ(last.at("id"), events.front().at("response").at("id"));
    EXPECT_EQ(last.at("usage"), whole.at("usage"));
    EXPECT_EQ(last.at("output").at(1).at("arguments"), call.at("arguments"));
    EXPECT_EQ(last.at("output").at(0).at("content"), whole.at("output").at(0).at("content"));
  }
  ExpectAlive();
}

TEST_F(ResponsesTest, CutAnswerIsIncomplete) {
  Start();
  SetText("one two three four");
  const json::value body = ParseBody(Post(kPath, Body({{"max_output_tokens", 1}})));
  EXPECT_EQ(body.at("status").as_string(), "incomplete");
  EXPECT_EQ(body.at("incomplete_details").at("reason").as_string(), "max_output_tokens");
  EXPECT_EQ(body.at("max_output_tokens").as_int64(), 1);
}

TEST_F(ResponsesTest, FailureBehindTheFirstEventIsAFailedResponse) {
  Start();
  SetText("one two three");
  worker_->SetCommit(1);
  worker_->SetFailure(2, Internal("secret"));
  const std::vector<json::value> events = Events(Post(kPath, Body({{"stream", true}})));
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back().at("type").as_string(), "response.failed");
  EXPECT_EQ(events.back().at("response").at("status").as_string(), "failed");
  EXPECT_EQ(events.back().at("response").at("error").at("code").as_string(), "server_error");
  EXPECT_EQ(json::serialize(events.back()).find("secret"), std::string::npos);
}

TEST_F(ResponsesTest, ALongWaitForAWorkerIsTold) {
  options_.queue_notice_delay = std::chrono::milliseconds(20);
  options_.sse_ping_interval = std::chrono::milliseconds(40);
  Start();
  worker_->Hold();
  const std::string body = json::serialize(Body({{"stream", true}}));
  // A prompt that takes long is no wait for a turn.
  TestClient other(port());
  other.Send("POST", kPath, body);
  ASSERT_TRUE(other.ReadHead());
  EXPECT_TRUE(other.ReadChunk().value_or("").starts_with("event: ping"));
  EngineStatistics statistics;
  statistics.waiting = 1;
  worker_->SetStatistics(statistics);
  TestClient client(port());
  client.Send("POST", kPath, body);
  const std::optional<ClientResponse> head = client.ReadHead();
  ASSERT_TRUE(head);
  ASSERT_EQ(head->status, 200);
  const auto next = [&] {
    std::string chunk;
    // Pings go on behind the notice.
    do chunk = client.ReadChunk().value_or("");
    while (chunk.starts_with("event: ping"));
    return chunk;
  };
  for (const std::string_view type : {"response.created", "response.queued"}) {
    const std::string chunk = next();
    EXPECT_TRUE(chunk.starts_with("event: " + std::string(type) + "\n")) << chunk;
    EXPECT_NE(chunk.find(R"("status":"queued")"), std::string::npos) << chunk;
  }
  EXPECT_EQ(client.ReadChunk().value_or("").substr(0, 11), "event: ping");
  worker_->Release();
  const std::string begin = next();
  EXPECT_TRUE(begin.starts_with("event: response.in_progress\n")) << begin;
  EXPECT_NE(begin.find(R"("status":"in_progress")"), std::string::npos);
  EXPECT_NE(begin.find(R"("sequence_number":2)"), std::string::npos) << begin;
  std::string seen;
  while (auto chunk = other.ReadChunk()) seen += *chunk;
  EXPECT_EQ(seen.find("response.queued"), std::string::npos);
  EXPECT_NE(seen.find("response.completed"), std::string::npos);
}

TEST_F(ResponsesTest, LogprobsComeWithTheirText) {
  Start();
  SetText("one");
  const json::value body = ParseBody(Post(kPath, Body({{"top_logprobs", 0}})));
  const json::value& part = body.at("output").at(0).at("content").at(0);
  EXPECT_FALSE(part.at("logprobs").as_array().empty());
}

TEST_F(ResponsesTest, ErrorsHaveTheUsualShape) {
  Start();
  const auto param = [&](const json::object& more) {
    return std::string(ParseBody(Post(kPath, Body(more))).at("error").at("param").as_string());
  };
  std::string long_text;
  for (int i = 0; i < 2 * kContext; ++i) long_text += " word";
  EXPECT_EQ(param({{"input", long_text}}), "input");
  EXPECT_EQ(param({{"max_output_tokens", 0}}), "max_output_tokens");
  EXPECT_EQ(param({{"prompt_cache_retention", ""}}), "prompt_cache_retention");
  EXPECT_EQ(ErrorCode(Post(kPath, Body({{"input", json::array()}}))), "missing_required_parameter");
  EXPECT_EQ(ErrorCode(Post(kPath, Body({{"previous_response_id", "r"}}))), "unsupported_parameter");
}

}  // namespace
}  // namespace deepinfer
