// Lengths, arrivals, shared prefixes and traces of the load generator.

#include "cli/bench_serve_workload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace deepinfer {
namespace {

TEST(LengthDistribution, DrawsFromItsRange) {
  const LengthDistribution constant = *LengthDistribution::Parse("17");
  const LengthDistribution uniform = *LengthDistribution::Parse("10:13");
  const LengthDistribution normal = *LengthDistribution::Parse("normal:500:50");
  const LengthDistribution lognormal = *LengthDistribution::Parse("lognormal:400:0.5");
  std::set<int32_t> seen;
  double sum = 0;
  int above_median = 0;
  for (uint64_t i = 0; i < 4000; ++i) {
    EXPECT_EQ(constant.Draw(1, 0, i), 17);
    seen.insert(uniform.Draw(1, 0, i));
    sum += normal.Draw(1, 0, i);
    above_median += lognormal.Draw(1, 0, i) > 400;
    EXPECT_GE(lognormal.Draw(1, 0, i), 1);
  }
  EXPECT_EQ(seen, (std::set<int32_t>{10, 11, 12, 13}));
  EXPECT_NEAR(sum / 4000, 500, 4);
  EXPECT_NEAR(above_median / 4000.0, 0.5, 0.04);
}

TEST(LengthDistribution, RefusesWhatIsNoLength) {
  for (const char* text : {"", "0", "-3", "x", "5:2", "1:2:3", "normal:5", "normal:a:b", "nan",
                           "poisson:3:1", "1e30", "lognormal:0:1"}) {
    EXPECT_FALSE(LengthDistribution::Parse(text).ok()) << text;
  }
}

SyntheticWorkload Plain() {
  SyntheticWorkload w;
  w.num_requests = 200;
  w.input = *LengthDistribution::Parse("100");
  w.output = *LengthDistribution::Parse("5");
  return w;
}

TEST(Synthetic, TheSameSeedMakesTheSameRequests) {
  SyntheticWorkload w = Plain();
  w.input = *LengthDistribution::Parse("50:90");
  w.rate_per_s = 10;
  const auto a = MakeSynthetic(w), b = MakeSynthetic(w);
  w.seed = 2;
  const auto c = MakeSynthetic(w);
  int different = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(PromptIds(a[i], 0, 1000), PromptIds(b[i], 0, 1000));
    EXPECT_EQ(a[i].arrival_s, b[i].arrival_s);
    different += a[i].prompt_tokens() != c[i].prompt_tokens();
  }
  EXPECT_GT(different, 100);
}

TEST(Synthetic, ArrivalsHaveTheRateAndTheBurstiness) {
  SyntheticWorkload w = Plain();
  w.num_requests = 5000;
  w.rate_per_s = 20;
  EXPECT_NEAR(MakeSynthetic(w).back().arrival_s, 250, 15);
  w.burstiness = 0;
  const auto even = MakeSynthetic(w);
  EXPECT_NEAR(even[100].arrival_s, 5.0, 1e-9);
  EXPECT_TRUE(std::is_sorted(even.begin(), even.end(), [](const auto& a, const auto& b) {
    return a.arrival_s < b.arrival_s;
  }));
}

TEST(Synthetic, PromptsShareExactlyTheirPrefix) {
  SyntheticWorkload w = Plain();
  w.shared_share = 0.6;
  w.num_prefixes = 3;
  std::set<std::vector<int32_t>> prefixes, rests;
  for (const WorkloadRequest& request : MakeSynthetic(w)) {
    const std::vector<int32_t> ids = PromptIds(request, 0, 5000);
    ASSERT_EQ(ids.size(), 100u);
    EXPECT_EQ(ids.front(), 0);
    for (size_t i = 1; i < ids.size(); ++i) EXPECT_TRUE(ids[i] >= 3 && ids[i] < 5000) << ids[i];
    prefixes.insert({ids.begin(), ids.begin() + 60});
    rests.insert({ids.begin() + 60, ids.end()});
  }
  EXPECT_EQ(prefixes.size(), 3u);
  EXPECT_EQ(rests.size(), 200u);
}

constexpr char kTrace[] =
    "{\"timestamp\": 1000, \"input_length\": 600, \"output_length\": 20, \"hash_ids\": [7, 8]}\n"
    "{\"timestamp\": 3000, \"input_length\": 1100, \"output_length\": 1, \"hash_ids\": [7, 9, "
    "4]}\n";

TEST(Trace, EqualHashIdsGiveEqualTokens) {
  const auto requests = *ParseTrace(kTrace, {});
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[0].arrival_s, 0);
  EXPECT_EQ(requests[1].arrival_s, 2);
  EXPECT_EQ(requests[0].output_tokens, 20);
  const auto a = PromptIds(requests[0], 0, 9000), b = PromptIds(requests[1], 0, 9000);
  ASSERT_EQ(a.size(), 600u);
  ASSERT_EQ(b.size(), 1100u);
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 512, b.begin()));
  EXPECT_FALSE(std::equal(a.begin() + 512, a.end(), b.begin() + 512));
}

TEST(Trace, ScalesAndLimits) {
  TraceOptions options;
  options.length_scale = 0.1;
  options.time_scale = 0.5;
  auto requests = *ParseTrace(kTrace, options);
  EXPECT_EQ(requests[0].prompt_tokens(), 60);
  EXPECT_EQ(requests[0].output_tokens, 2);
  EXPECT_EQ(requests[1].arrival_s, 1);
  options.max_requests = 1;
  EXPECT_EQ(ParseTrace(kTrace, options)->size(), 1u);
  options = {};
  options.max_input_tokens = 700;
  EXPECT_EQ(ParseTrace(kTrace, options)->size(), 1u);
}

TEST(Trace, ReadsTheCsvForm) {
  const auto requests = *ParseTrace(
      "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
      "2023-11-16 18:59:59.5000000,374,44\r\n"
      "2023-11-17 00:00:01.0000000,396,109\r\n",
      {});
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[0].prompt_tokens(), 374);
  EXPECT_EQ(requests[1].output_tokens, 109);
  EXPECT_NEAR(requests[1].arrival_s, 5 * 3600 + 1.5, 1e-6);
}

TEST(Trace, NamesTheLineThatIsWrong) {
  for (const char* text :
       {"", "{}", "{\"timestamp\":1,\"input_length\":5}", "a,b,c", "1,2",
        "{\"timestamp\":1,\"input_length\":5,\"output_length\":1,\"hash_ids\":[\"x\"]}",
        "{\"timestamp\":5000,\"input_length\":5,\"output_length\":1}\n"
        "{\"timestamp\":1000,\"input_length\":5,\"output_length\":1}"}) {
    const auto requests = ParseTrace(text, {});
    ASSERT_FALSE(requests.ok()) << text;
    EXPECT_EQ(requests.status().code(), StatusCode::kInvalidRequest);
  }
  EXPECT_NE(ParseTrace("x\n", {}).status().message().find("line 1"), std::string_view::npos);
}

}  // namespace
}  // namespace deepinfer
