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

std::string OfEngine(std::string_view name, std::string_view engine, std::string_view more = "") {
  return std::string(name)
      .append(R"({model_name="m",role="all",engine=")")
      .append(engine)
      .append("\"")
      .append(more)
      .append("}");
}

TEST(Metrics, ShowTheStateOfEveryEngine) {
  ServerMetrics metrics("m", MetricsCompat::kVllm);
  std::vector<EngineStatistics> engines(2);
  engines[0].running = 3;
  engines[1].running = 4;
  engines[1].waiting = 5;
  engines[0].kv_tokens = 25;
  engines[0].kv_capacity_tokens = 100;
  const std::string text = metrics.Serialize(engines);
  EXPECT_TRUE(Has(text, OfEngine("vllm:num_requests_running", "0"), "3")) << text;
  EXPECT_TRUE(Has(text, OfEngine("deepinfer:num_requests_running", "1"), "4"));
  EXPECT_TRUE(Has(text, OfEngine("vllm:num_requests_waiting", "1"), "5"));
  EXPECT_TRUE(Has(text, OfEngine("deepinfer:kv_cache_usage_perc", "0"), "0.25"));
}

TEST(Metrics, KnowWorkersByNameWhenTheyComeAndGo) {
  ServerMetrics metrics("m", MetricsCompat::kVllm);
  EngineStatistics a, b;
  a.name = "a";
  a.incarnation = 1;
  a.parks = 2;
  b.name = "b";
  b.incarnation = 2;
  b.parks = 10;
  b.rows_per_step.Observe(17);
  const auto of = [](const char* name) {
    return OfEngine("deepinfer:num_preemptions_total", name);
  };
  std::string text = metrics.Serialize({a, b});
  EXPECT_TRUE(Has(text, of("a"), "2")) << text;
  EXPECT_TRUE(Has(text, of("b"), "10"));
  // The first leaves: the other keeps its own series.
  b.parks = 11;
  text = metrics.Serialize({b});
  EXPECT_EQ(text.find("engine=\"a\""), std::string::npos);
  EXPECT_TRUE(Has(text, of("b"), "11"));
  // A restart goes on from where the series was.
  b = EngineStatistics();
  b.name = "b";
  b.incarnation = 3;
  b.parks = 1;
  b.rows_per_step.Observe(3);
  text = metrics.Serialize({a, b});
  EXPECT_TRUE(Has(text, of("b"), "12")) << text;
  EXPECT_TRUE(Has(text, OfEngine("deepinfer:iteration_tokens_total_sum", "b"), "20"));
  EXPECT_TRUE(Has(text, of("a"), "2"));
}

TEST(Metrics, CountWhatTheEngineDidOnceHoweverOftenTheyAreRead) {
  ServerMetrics metrics("m", MetricsCompat::kVllm);
  std::vector<EngineStatistics> engines(1);
  EngineStatistics& e = engines[0];
  e.parks = 2;
  e.decode_rows = 70;
  e.queued_by_class = {1, 0, 6};
  e.undelivered_events = 9;
  e.kiloflops = 5;
  e.attention_kiloflops = 2;
  e.draft_accepted_by_position = {9, 7, 5, 3, 1};
  e.step_seconds[static_cast<size_t>(StepKind::kDecode)].Observe(0.003, 4);
  e.rows_per_step.Observe(17);
  std::string text;
  for (int i = 0; i < 3; ++i) text = metrics.Serialize(engines);
  EXPECT_TRUE(Has(text, OfEngine("vllm:num_preemptions_total", "0"), "2")) << text;
  EXPECT_TRUE(Has(text, OfEngine("deepinfer:rows_total", "0", R"(,kind="decode")"), "70"));
  EXPECT_TRUE(Has(
      text, R"(deepinfer:num_requests_queued{model_name="m",role="all",class="batch",engine="0"})",
      "6"))
      << text;
  EXPECT_TRUE(Has(text, OfEngine("deepinfer:undelivered_events", "0"), "9"));
  EXPECT_TRUE(Has(text, OfEngine("deepinfer:model_flops_total", "0"), "5000"));
  EXPECT_TRUE(Has(text, OfEngine("deepinfer:attention_flops_total", "0"), "2000"));
  EXPECT_TRUE(Has(
      text, OfEngine("vllm:spec_decode_num_accepted_tokens_per_pos_total", "0", R"(,position="3")"),
      "3"));
  EXPECT_TRUE(Has(text, OfEngine("deepinfer:step_seconds_count", "0", R"(,kind="decode")"), "4"));
  EXPECT_TRUE(Has(
      text, OfEngine("deepinfer:step_seconds_bucket", "0", R"(,kind="decode",le="0.002")"), "0"));
  EXPECT_TRUE(Has(
      text, OfEngine("deepinfer:step_seconds_bucket", "0", R"(,kind="decode",le="0.004")"), "4"));
  EXPECT_TRUE(Has(text, OfEngine("vllm:iteration_tokens_total_sum", "0"), "17"));
  e.parks = 3;
  e.rows_per_step.Observe(3);
  text = metrics.Serialize(engines);
  EXPECT_TRUE(Has(text, OfEngine("vllm:num_preemptions_total", "0"), "3"));
  EXPECT_TRUE(Has(text, OfEngine("vllm:iteration_tokens_total_sum", "0"), "20"));
  EXPECT_TRUE(Has(text, OfEngine("vllm:iteration_tokens_total_count", "0"), "2"));
}

TEST(Metrics, GaugesOfWhatIsNotKnownAreLeftOut) {
  ServerMetrics metrics("m", MetricsCompat::kNone);
  std::vector<EngineStatistics> engines(1);
  EngineStatistics& e = engines[0];
  e.flops_per_second = 5'000'000'000;
  std::string text = metrics.Serialize(engines);
  EXPECT_TRUE(Has(text, OfEngine("deepinfer:model_flops_per_second", "0"), "5000000000")) << text;
  EXPECT_EQ(text.find("deepinfer:model_flops_utilization{"), std::string::npos) << text;
  EXPECT_EQ(text.find("deepinfer:expert_load_imbalance{"), std::string::npos);
  e.peak_flops = 20'000'000'000;
  e.expert_load_milli = 1500;
  text = metrics.Serialize(engines);
  EXPECT_TRUE(Has(text, OfEngine("deepinfer:model_flops_utilization", "0"), "0.25")) << text;
  EXPECT_TRUE(Has(text, OfEngine("deepinfer:expert_load_imbalance", "0"), "1.5"));
  // A restart without the peak.
  e.peak_flops = 0;
  text = metrics.Serialize(engines);
  EXPECT_EQ(text.find("deepinfer:model_flops_utilization{"), std::string::npos) << text;
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

std::string OfGateway(std::string_view name, std::string_view more = "") {
  return std::string("deepinfer:gateway_")
      .append(name)
      .append(R"({model_name="m",role="all",engine="0")")
      .append(more)
      .append("}");
}

TEST(Metrics, ShowHowFarForecastsWereOffAndNeverGoBack) {
  ServerMetrics metrics("m", MetricsCompat::kVllm);
  GatewayCounters before, after;
  before.forecast_errors.ttft.Observe(0.5);
  after = before;
  after.forecast_errors.ttft.Observe(0.25);
  after.forecast_errors.tpot.Observe(0.03);
  after.busiest[2] = 1.5;
  (void)metrics.Serialize({}, {}, {}, before);
  (void)metrics.Serialize({}, {}, {}, after);
  // Of a reader that comes late.
  const std::string text =
      metrics.Serialize({}, {}, {}, before) + metrics.Serialize({}, {}, {}, after);
  EXPECT_TRUE(Has(text, OfGateway("ttft_forecast_error_count"), "2")) << text;
  EXPECT_TRUE(Has(text, OfGateway("ttft_forecast_error_sum"), "0.75"));
  EXPECT_TRUE(Has(text, OfGateway("tpot_forecast_error_count"), "1"));
  EXPECT_FALSE(Has(text, OfGateway("ttft_forecast_error_count"), "1"));
  EXPECT_TRUE(Has(text, OfGateway("busiest_worker_ratio", R"(,of="decode")"), "1.5")) << text;
}

}  // namespace
}  // namespace deepinfer
