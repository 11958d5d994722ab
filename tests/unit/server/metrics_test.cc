#include "server/metrics.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

RequestFacts ExampleFacts() {
  RequestFacts facts;
  facts.method = "POST";
  facts.route = "/v1/chat/completions";
  facts.outcome.status = 200;
  facts.generated = true;
  facts.num_choices = 1;
  facts.max_tokens = 100;
  facts.prompt_tokens = 30;
  facts.cached_tokens = 10;
  facts.computed_tokens = 20;
  facts.completion_tokens = 7;
  facts.ttft_us = 30'000;
  facts.e2e_us = 90'000;
  return facts;
}

// True when the exposition holds the series with this value.
bool Has(const std::string& text, std::string_view series, std::string_view value) {
  const std::string line = std::string(series).append(" ").append(value).append("\n");
  return text.find(line) != std::string::npos;
}

constexpr std::string_view kLabels = R"({engine="0",model_name="m",role="all"})";

std::string Plain(std::string_view name) { return std::string(name).append(kLabels); }

TEST(Metrics, CountsTokensByClassUnderBothNames) {
  ServerMetrics metrics("m", MetricsCompat::kVllm);
  metrics.OnRequest(ExampleFacts());
  metrics.OnGeneration(ExampleFacts());
  metrics.OnRequest(ExampleFacts());
  metrics.OnGeneration(ExampleFacts());
  const std::string text = metrics.Serialize({});
  for (const std::string_view prefix : {"deepinfer:", "vllm:"}) {
    const std::string p(prefix);
    EXPECT_TRUE(Has(text, Plain(p + "prompt_tokens_total"), "60")) << text;
    EXPECT_TRUE(Has(text, Plain(p + "generation_tokens_total"), "14"));
    EXPECT_TRUE(Has(text, Plain(p + "prefix_cache_hits_total"), "20"));
    EXPECT_TRUE(Has(text, Plain(p + "time_to_first_token_seconds_count"), "2"));
  }
  EXPECT_NE(
      text.find(
          R"(deepinfer:tokens_total{engine="0",model_name="m",role="all",class="computed"} 40)"),
      std::string::npos);
  EXPECT_EQ(text.find("vllm:tokens_total"), std::string::npos);
}

TEST(Metrics, CompatNoneExportsOnlyNativeNames) {
  ServerMetrics metrics("m", MetricsCompat::kNone);
  metrics.OnRequest(ExampleFacts());
  metrics.OnGeneration(ExampleFacts());
  const std::string text = metrics.Serialize({});
  EXPECT_EQ(text.find("vllm:"), std::string::npos);
  EXPECT_EQ(text.find("\nhttp_requests_total"), std::string::npos);
  EXPECT_NE(text.find("deepinfer:http_requests_total"), std::string::npos);
}

TEST(Metrics, TtftUsesTheDocumentedBuckets) {
  ServerMetrics metrics("m", MetricsCompat::kNone);
  metrics.OnRequest(ExampleFacts());
  metrics.OnGeneration(ExampleFacts());
  const std::string text = metrics.Serialize({});
  size_t buckets = 0;
  for (size_t at = 0;
       (at = text.find("deepinfer:time_to_first_token_seconds_bucket", at)) != std::string::npos;
       ++at) {
    ++buckets;
  }
  EXPECT_EQ(buckets, 23u);  // 22 of the table and +Inf
  EXPECT_NE(text.find(R"(le="0.02"} 0)"), std::string::npos);
  EXPECT_NE(text.find(R"(le="0.04"} 1)"), std::string::npos);
}

TEST(Metrics, GaugesComeFromTheLoadReport) {
  ServerMetrics metrics("m", MetricsCompat::kVllm);
  LoadReport load;
  load.running = 3;
  load.waiting = 5;
  load.kv_tokens = 25;
  load.kv_capacity_tokens = 100;
  const std::string text = metrics.Serialize(load);
  EXPECT_TRUE(Has(text, Plain("vllm:num_requests_running"), "3"));
  EXPECT_TRUE(Has(text, Plain("vllm:num_requests_waiting"), "5"));
  EXPECT_TRUE(Has(text, Plain("deepinfer:kv_cache_usage_perc"), "0.25"));
}

TEST(Metrics, LabelsStayBounded) {
  ServerMetrics metrics("m", MetricsCompat::kNone);
  for (int i = 0; i < 2000; ++i)
    metrics.OnUnknownFields({std::string("field").append(std::to_string(i))});
  metrics.OnUnknownFields({std::string(1000, 'x')});
  RequestFacts facts = ExampleFacts();
  for (int i = 0; i < 100; ++i) {
    facts.method = std::string("M").append(std::to_string(i));
    metrics.OnRequest(facts);
  }
  const std::string text = metrics.Serialize({});
  const auto count = [&](std::string_view name) {
    size_t found = 0;
    for (size_t at = 0; (at = text.find(name, at)) != std::string::npos; ++at) ++found;
    return found;
  };
  EXPECT_EQ(count("deepinfer:unknown_request_fields_total{"), 256u);
  EXPECT_EQ(count("deepinfer:http_requests_total{"), 1u);
}

TEST(Metrics, CancelledRequestsAreCountedApart) {
  ServerMetrics metrics("m", MetricsCompat::kNone);
  RequestFacts facts = ExampleFacts();
  facts.cancelled = true;
  metrics.OnGeneration(facts);
  metrics.OnWastedTokens(2);
  const std::string text = metrics.Serialize({});
  EXPECT_NE(text.find(R"(outcome="cancelled"} 1)"), std::string::npos) << text;
  EXPECT_NE(text.find(R"(deepinfer:tokens_total{engine="0",model_name="m",role="all",)"
                      R"(class="wasted"} 2)"),
            std::string::npos)
      << text;
}

}  // namespace
}  // namespace deepinfer
