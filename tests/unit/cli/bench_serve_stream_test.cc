// How a streamed answer is taken apart and timed.

#include <gtest/gtest.h>

#include "cli/bench_serve_client.h"

namespace deepinfer {
namespace {

constexpr char kToken[] =
    R"(data: {"id":"c","choices":[{"index":0,"text":"a","finish_reason":null}],"usage":null})"
    "\n\n";
constexpr char kFinish[] =
    R"(data: {"id":"c","choices":[{"index":0,"text":"","finish_reason":"length"}],"usage":null})"
    "\n\n";
constexpr char kUsage[] =
    R"(data: {"id":"c","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,)"
    R"("prompt_tokens_details":{"cached_tokens":4}}})"
    "\n\n";
constexpr char kDone[] = "data: [DONE]\n\n";

TEST(StreamReader, TimesEveryEventAndReadsTheUsage) {
  RequestOutcome outcome;
  outcome.status = 200;
  StreamReader reader(&outcome);
  EXPECT_EQ(reader.Take(": keep-alive\n\n", 0.1), 0);
  EXPECT_EQ(reader.Take(kToken, 1.0), 1);
  EXPECT_EQ(reader.Take(kToken, 1.5), 1);
  EXPECT_EQ(reader.Take(kToken, 2.25), 1);
  EXPECT_EQ(reader.Take(kFinish, 3), 0);
  EXPECT_EQ(reader.Take(std::string(kUsage) + kDone, 3), 0);
  reader.Finish();
  EXPECT_TRUE(outcome.ok) << outcome.error;
  EXPECT_EQ(outcome.first_token_s, 1.0);
  EXPECT_EQ(outcome.last_token_s, 2.25);
  EXPECT_EQ(outcome.gaps_s, (std::vector<float>{0.5f, 0.75f}));
  EXPECT_EQ(outcome.prompt_tokens, 9);
  EXPECT_EQ(outcome.cached_tokens, 4);
  EXPECT_EQ(outcome.output_tokens, 3);
}

TEST(StreamReader, DoesNotCareHowTheBytesAreCut) {
  const std::string all = std::string(kToken) + kToken + kFinish + kUsage + kDone;
  for (size_t step : {1u, 2u, 3u, 7u, 64u}) {
    RequestOutcome outcome;
    outcome.status = 200;
    StreamReader reader(&outcome);
    int64_t events = 0;
    for (size_t at = 0; at < all.size(); at += step) {
      events += reader.Take(std::string_view(all).substr(at, step), static_cast<double>(at));
    }
    reader.Finish();
    EXPECT_TRUE(outcome.ok) << step << " " << outcome.error;
    EXPECT_EQ(events, 2) << step;
    EXPECT_EQ(outcome.output_tokens, 3);
  }
}

std::string ErrorOf(int status, const std::string& body) {
  RequestOutcome outcome;
  outcome.status = status;
  StreamReader reader(&outcome);
  reader.Take(body, 1);
  reader.Finish();
  EXPECT_FALSE(outcome.ok) << body;
  return outcome.error;
}

TEST(StreamReader, SaysWhyARequestFailed) {
  EXPECT_EQ(ErrorOf(429, R"({"error":{"message":"full"}})"), "status 429: full");
  EXPECT_EQ(ErrorOf(429, "{\n\"error\":\n{\"message\":\"full\"}}"), "status 429: full");
  EXPECT_EQ(ErrorOf(502, "<html>"), "status 502");
  EXPECT_EQ(ErrorOf(500, R"({"error":"so"})"), "status 500");
  EXPECT_EQ(ErrorOf(500, std::string(1 << 20, 'x')), "status 500");
  EXPECT_EQ(ErrorOf(200, "data: {\"error\":{\"message\":\"gone\"}}\n\ndata: [DONE]\n\n"), "gone");
  EXPECT_EQ(ErrorOf(200, kToken), "the stream ended early");
  EXPECT_EQ(ErrorOf(200, std::string(kToken) + kDone), "the answer has no usage");
  EXPECT_EQ(ErrorOf(200, "data: {\"usage\":{\n\n"), "an event is not JSON");
}

TEST(LoadTarget, ReadsUrls) {
  const auto host_port = [](const std::string& url) {
    const Result<LoadTarget> target = LoadTarget::Parse(url);
    return target.ok() ? target->host + " " + target->port : "refused";
  };
  EXPECT_EQ(host_port("http://127.0.0.1:9000"), "127.0.0.1 9000");
  EXPECT_EQ(host_port("localhost/"), "localhost 8000");
  EXPECT_EQ(host_port("http://[::1]:80"), "::1 80");
  EXPECT_EQ(host_port("[::1]"), "::1 8000");
  for (const char* bad : {"", "http://", "http://a:b", "http://a/b", "http://a:", "https://a:1"}) {
    EXPECT_EQ(host_port(bad), "refused") << bad;
  }
}

}  // namespace
}  // namespace deepinfer
