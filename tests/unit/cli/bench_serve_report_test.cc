// Percentiles and the written forms of a load test.

#include "cli/bench_serve_report.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>

namespace deepinfer {
namespace {

TEST(Percentiles, AreNearestRanks) {
  std::vector<double> values;
  for (int i = 100; i >= 1; --i) values.push_back(i);
  const Percentiles p = MakePercentiles(values);
  EXPECT_EQ(p.p50, 50);
  EXPECT_EQ(p.p90, 90);
  EXPECT_EQ(p.p99, 99);
  EXPECT_EQ(p.max, 100);
  EXPECT_DOUBLE_EQ(p.mean, 50.5);
  EXPECT_EQ(MakePercentiles({3}).p99, 3);
  EXPECT_EQ(MakePercentiles({}).max, 0);
}

RequestOutcome Answer(double start_s, double first_s, double gap_s, int64_t tokens) {
  RequestOutcome o;
  o.ok = true;
  o.start_s = start_s;
  o.first_token_s = first_s;
  o.last_token_s = first_s + gap_s * static_cast<double>(tokens - 1);
  o.gaps_s.assign(static_cast<size_t>(tokens - 1), static_cast<float>(gap_s));
  o.prompt_tokens = 100;
  o.cached_tokens = 25;
  o.output_tokens = tokens;
  return o;
}

std::vector<RequestOutcome> Outcomes() {
  std::vector<RequestOutcome> outcomes = {Answer(0, 0.5, 0.1, 11), Answer(1, 1.25, 0.2, 6),
                                          Answer(2, 3, 0, 1)};
  for (const char* error : {"status 429", "connect: refused", "status 429"}) {
    outcomes.emplace_back().error = error;
  }
  return outcomes;
}

TEST(Report, MeasuresWhatClientsSee) {
  const LoadTestReport r = MakeReport("x", 4, 9.0, Outcomes());
  EXPECT_EQ(r.num_ok, 3);
  EXPECT_EQ(r.num_failed, 3);
  EXPECT_EQ(r.errors.front(), (std::pair<std::string, int64_t>{"status 429", 2}));
  EXPECT_DOUBLE_EQ(r.output_tokens_per_s(), 2);
  EXPECT_DOUBLE_EQ(r.prompt_tokens_per_s(), 300 / 9.0);
  EXPECT_DOUBLE_EQ(r.ttft_ms.p50, 500);
  EXPECT_DOUBLE_EQ(r.ttft_ms.max, 1000);
  EXPECT_NEAR(r.tpot_ms.max, 200, 1e-6) << "an answer of one token has no time per token";
  EXPECT_NEAR(r.tpot_ms.mean, 150, 1e-6);
  EXPECT_NEAR(r.itl_ms.p50, 100, 1e-3);
  EXPECT_NEAR(r.e2e_ms.max, 1500, 1e-6);
  EXPECT_NEAR(r.tokens_per_s_per_user(), 10, 1e-6);
}

TEST(Report, IsJsonWithEveryNumber) {
  const LoadTestReport r = MakeReport("quote \" here", 4, 9.0, Outcomes());
  const boost::json::value v = boost::json::parse(ReportJson(r));
  EXPECT_EQ(v.at("label").as_string(), "quote \" here");
  EXPECT_EQ(v.at("completed").as_int64(), 3);
  EXPECT_EQ(v.at("failed").as_int64(), 3);
  EXPECT_EQ(v.at("errors").at("status 429").as_int64(), 2);
  EXPECT_EQ(v.at("output_tokens").as_int64(), 18);
  EXPECT_EQ(v.at("cached_tokens").as_int64(), 75);
  for (const char* name : {"ttft_ms", "itl_ms", "tpot_ms", "e2e_ms"}) {
    for (const char* key : {"mean", "p50", "p90", "p95", "p99", "max"}) {
      EXPECT_GT(v.at(name).at(key).to_number<double>(), 0) << name << " " << key;
    }
  }
}

TEST(Report, TextNamesFailures) {
  const std::string text = ReportText(MakeReport("run", 0, 9.0, Outcomes()));
  EXPECT_NE(text.find("3 ok, 3 failed"), std::string::npos) << text;
  EXPECT_NE(text.find("failed 2: status 429"), std::string::npos);
  EXPECT_NE(text.find("25.0 % cached"), std::string::npos);
  EXPECT_FALSE(ReportText(MakeReport("empty", 1, 0, {})).empty());
}

TEST(Plot, HasOnePointPerRun) {
  std::vector<LoadTestReport> reports;
  for (int64_t level : {1, 2, 4}) {
    reports.push_back(MakeReport("c", level, 9.0 / static_cast<double>(level), Outcomes()));
  }
  const std::string svg = ThroughputSvg("a < b & c", reports);
  size_t points = 0;
  for (size_t at = 0; (at = svg.find("<circle", at)) != std::string::npos; ++at) ++points;
  EXPECT_EQ(points, 3u);
  EXPECT_NE(svg.find("a &lt; b &amp; c"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_FALSE(ThroughputSvg("nothing", {}).empty());
}

}  // namespace
}  // namespace deepinfer
