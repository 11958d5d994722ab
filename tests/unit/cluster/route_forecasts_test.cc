// What choices of workers let expect, and how the gateway learns how far off that was.

#include "cluster/route_forecasts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "cluster/busy_shares.h"
#include "cluster/gateway.h"
#include "support/eventually.h"
#include "support/fake_clock.h"
#include "support/scripted_worker.h"
#include "support/token_collector.h"

namespace deepinfer {
namespace {

int64_t NumObserved(const StatHistogram& h) {
  return std::accumulate(h.counts().begin(), h.counts().end(), int64_t{0});
}

// A request that was sent at 0, got its first token after ttft_us and ten more of tpot_us each.
RouteTimes Times(const RouteForecasts& forecasts, const RouteForecast& by_costs, int64_t ttft_us,
                 int64_t tpot_us) {
  return {by_costs, forecasts.Correct(by_costs), 0, ttft_us, ttft_us + 10 * tpot_us, 1, 11};
}

TEST(RouteForecasts, AreCorrectedByWhatWasMeasured) {
  RouteForecasts forecasts;
  const RouteForecast by_costs{1000, 100, 1, 2};
  EXPECT_EQ(forecasts.Correct(by_costs).ttft_us, 1000) << "nothing is known yet";
  for (int i = 0; i < 40; ++i) {
    const RouteTimes times = Times(forecasts, by_costs, 3000, 150);
    forecasts.NoteFirstToken(times);
    forecasts.NoteAnswer(times);
  }
  EXPECT_NEAR(forecasts.Correct(by_costs).ttft_us, 3000, 10);
  EXPECT_NEAR(forecasts.Correct(by_costs).tpot_us, 150, 0.5);
  const RouteForecast elsewhere{1000, 100, 2, 1};
  EXPECT_EQ(forecasts.Correct(elsewhere).ttft_us, 1000) << "another worker's prompts";
  EXPECT_EQ(forecasts.Correct(elsewhere).tpot_us, 100) << "another worker's answers";
  const RouteForecasts::Errors errors = forecasts.errors();
  EXPECT_EQ(NumObserved(errors.ttft), 40);
  // The first was off by two thirds; of later tokens by one.
  EXPECT_NEAR(errors.ttft.sum(), 2.0 / 3, 0.1);
  EXPECT_NEAR(errors.tpot.sum(), 1.0 / 3, 0.1);
  EXPECT_EQ(errors.ttft.counts().front(), 39) << "the others were right";
}

// Two milliseconds lie around every prompt, and a core takes half as long again as was thought.
TEST(RouteForecasts, TellTheFixedPartFromTheFactor) {
  RouteForecasts forecasts;
  for (int i = 0; i < 60; ++i) {
    const double by_costs_us = 1000.0 * (1 + i % 7);
    const RouteForecast by_costs{by_costs_us, 100, 1, 1};
    const auto ttft_us = static_cast<int64_t>(2000 + 1.5 * by_costs_us);
    forecasts.NoteFirstToken(Times(forecasts, by_costs, ttft_us, 100));
  }
  EXPECT_NEAR(forecasts.Correct({500, 100, 1, 1}).ttft_us, 2750, 60);
  EXPECT_NEAR(forecasts.Correct({20'000, 100, 1, 1}).ttft_us, 32'000, 700);
}

TEST(RouteForecasts, FollowAWorkerThatBecomesSlower) {
  RouteForecasts forecasts;
  const RouteForecast by_costs{1000, 100, 1, 1};
  for (const int64_t ttft_us : {1000, 2000}) {
    for (int i = 0; i < 100; ++i) {
      forecasts.NoteFirstToken(Times(forecasts, by_costs, ttft_us, 100));
    }
  }
  EXPECT_NEAR(forecasts.Correct(by_costs).ttft_us, 2000, 100);
}

TEST(RouteForecasts, OneThatStoodStillDoesNotSpoilThem) {
  RouteForecasts forecasts;
  const RouteForecast by_costs{1000, 100, 1, 1};
  for (int i = 0; i < 20; ++i) forecasts.NoteFirstToken(Times(forecasts, by_costs, 1000, 100));
  forecasts.NoteFirstToken(Times(forecasts, by_costs, 60'000'000, 100));
  EXPECT_LT(forecasts.Correct(by_costs).ttft_us, 1200);
  EXPECT_GT(forecasts.Correct(by_costs).ttft_us, 900);
}

TEST(RouteForecasts, AnAnswerOfOneEventSaysNothingOfLaterTokens) {
  RouteForecasts forecasts;
  const RouteForecast by_costs{1000, 100, 1, 1};
  RouteTimes times{by_costs, by_costs, 0, 500, 500, 3, 3};
  forecasts.NoteAnswer(times);
  times.by_costs.tpot_us = 0;  // unknown
  times.num_tokens = 9;
  forecasts.NoteAnswer(times);
  EXPECT_EQ(NumObserved(forecasts.errors().tpot), 0);
}

class ForecastGateway : public ::testing::Test {
 protected:
  ForecastGateway() {
    std::vector<std::unique_ptr<Worker>> workers;
    for (const WorkerRole role : {WorkerRole::kPrefill, WorkerRole::kDecode}) {
      auto worker = std::make_unique<ScriptedWorker>(role);
      worker->SetCosts({.prompt_us_per_token = 1000, .step_us = 50, .step_us_per_row = 450});
      workers_.push_back(worker.get());
      workers.push_back(std::move(worker));
    }
    gateway_ = std::make_unique<Gateway>(GatewayOptions{}, std::move(workers), &clock_);
  }
  ~ForecastGateway() override {
    for (ScriptedWorker* worker : workers_) worker->EndAll();
  }
  void Submit(const std::string& id) {
    EngineRequest request;
    request.request_id = id;
    request.prompt_ids = {5, 6, 7};
    request.sampling.max_tokens = 5;
    ASSERT_TRUE(gateway_->Submit(std::move(request), out_.Sink()).ok());
  }
  RouteForecasts::Errors errors() const { return gateway_->counters().forecast_errors; }

  FakeClock clock_{1'000'000};
  TokenCollector out_;
  std::vector<ScriptedWorker*> workers_;
  std::unique_ptr<Gateway> gateway_;
};

// Three tokens of a millisecond, then steps of half a millisecond with one row.
TEST_F(ForecastGateway, MeasuresFirstAndLaterTokensAgainstTheCostsOfTheWorkersItChose) {
  Submit("a");
  clock_.Advance(4000);
  workers_[0]->SendImage(0, {}, 3);
  workers_[1]->Send(0, 0, {10});
  EXPECT_EQ(NumObserved(errors().ttft), 1);
  EXPECT_NEAR(errors().ttft.sum(), 0.25, 1e-9) << "3 ms were expected, 4 came";
  EXPECT_EQ(NumObserved(errors().tpot), 0);
  clock_.Advance(800);
  workers_[1]->Send(0, 1, {11, 12});
  clock_.Advance(700);
  workers_[1]->Send(0, 3, {13}, FinishReason::kLength);
  EXPECT_EQ(NumObserved(errors().ttft), 1);
  EXPECT_EQ(NumObserved(errors().tpot), 1);
  EXPECT_NEAR(errors().tpot.sum(), 0.0, 1e-9) << "three tokens in 1.5 ms, as expected";
}

// The loss is not the forecast's fault.
TEST_F(ForecastGateway, SaysNothingOfRequestsThatWentElsewhere) {
  Submit("a");
  workers_[0]->Lose(0);
  // The pair has just failed: it runs whole.
  ASSERT_TRUE(Eventually([&] { return workers_[1]->num_taken() == 2; }));
  clock_.Advance(4000);
  workers_[1]->Send(1, 0, {10, 11}, FinishReason::kStop);
  EXPECT_EQ(NumObserved(errors().ttft), 0);
  EXPECT_EQ(NumObserved(errors().tpot), 0);
}

TEST_F(ForecastGateway, SaysNothingOfLaterTokensOfAnAnswerThatWasCutShort) {
  Submit("a");
  clock_.Advance(3000);
  workers_[1]->Send(0, 0, {10});
  gateway_->Cancel("a");
  clock_.Advance(9000);
  workers_[1]->Send(0, 1, {11}, FinishReason::kCancelled);
  EXPECT_EQ(NumObserved(errors().ttft), 1);
  EXPECT_EQ(NumObserved(errors().tpot), 0);
}

using Time = BusyShares::WorkerTime;
constexpr auto kPrefill = WorkerRole::kPrefill;
constexpr auto kDecode = WorkerRole::kDecode;
constexpr int64_t kSecondUs = 1'000'000;

double Busiest(const BusyShares& shares, WorkerRole role) {
  return shares.busiest()[static_cast<size_t>(role)];
}

TEST(BusyShares, CompareTheBusiestOfARoleWithTheMean) {
  BusyShares shares;
  shares.Observe(0, std::vector<Time>{{1, kPrefill, 500}, {2, kPrefill, 900}, {3, kDecode, 5}});
  EXPECT_EQ(Busiest(shares, kPrefill), 0) << "nothing was done since";
  shares.Observe(kSecondUs,
                 std::vector<Time>{{1, kPrefill, 800}, {2, kPrefill, 1000}, {3, kDecode, 9}});
  EXPECT_DOUBLE_EQ(Busiest(shares, kPrefill), 1.5) << "300 and 100";
  EXPECT_EQ(Busiest(shares, kDecode), 1);
  EXPECT_EQ(Busiest(shares, WorkerRole::kAll), 0);
}

TEST(BusyShares, CountTheLastMinuteOnly) {
  BusyShares shares;
  for (int64_t s = 0; s <= 200; ++s) {
    // The first does everything for 100 s, then both the same.
    const int64_t late = std::max<int64_t>(0, s - 100);
    shares.Observe(s * kSecondUs,
                   std::vector<Time>{{1, kPrefill, 10 * s}, {2, kPrefill, 10 * late}});
    if (s == 90) {
      EXPECT_EQ(Busiest(shares, kPrefill), 2);
    }
  }
  EXPECT_EQ(Busiest(shares, kPrefill), 1);
}

TEST(BusyShares, DoNotCountWhatAWorkerDidBeforeItCame) {
  BusyShares shares;
  shares.Observe(0, std::vector<Time>{{1, kDecode, 100}, {0, kDecode, 0}});
  shares.Observe(kSecondUs, std::vector<Time>{{1, kDecode, 150}, {2, kDecode, 9'000'000}});
  shares.Observe(2 * kSecondUs, std::vector<Time>{{1, kDecode, 200}, {2, kDecode, 9'000'100}});
  EXPECT_EQ(Busiest(shares, kDecode), 1) << "a hundred each";
  shares.Observe(3 * kSecondUs, std::vector<Time>{{2, kDecode, 9'000'200}});
  EXPECT_EQ(Busiest(shares, kDecode), 1) << "the other has left";
}

}  // namespace
}  // namespace deepinfer
