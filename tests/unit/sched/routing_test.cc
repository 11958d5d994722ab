// Where prompts and answers go.

#include "sched/routing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace deepinfer {
namespace {

RouteCandidate Candidate(int32_t running, int64_t kv_tokens, int64_t queued = 0) {
  RouteCandidate c;
  c.running = running;
  c.kv_tokens = kv_tokens;
  c.free_tokens = 10'000'000;
  c.queued_prompt_tokens = queued;
  return c;
}

TEST(Routing, AnIdlePrefillWorkerWinsOverAnyBusyOne) {
  const std::vector<RouteCandidate> w = {Candidate(1, 10, 10), Candidate(1, 9'000, 0),
                                         Candidate(0, 0, 0)};
  EXPECT_EQ(ChoosePrefill(w, {10}, 0), 2u);
}

RouteCandidate Priced(double us_per_token, double queued_us) {
  RouteCandidate c = Candidate(1, 0, 100);
  c.costs.prompt_us_per_token = us_per_token;
  c.costs.step_us_per_row = us_per_token;
  c.costs.queued_us = queued_us;
  return c;
}

TEST(Routing, PromptsGoWhereTheyAreDoneFirst) {
  // The second is slower and has less to do.
  std::vector<RouteCandidate> w = {Priced(10, 50'000), Priced(30, 10'000)};
  EXPECT_EQ(ChoosePrefill(w, {1'000}, 0), 1u);
  EXPECT_EQ(ChoosePrefill(w, {4'000}, 0), 0u);
  // One without work wins, however slow it is.
  w[1].running = 0;
  w[1].queued_prompt_tokens = 0;
  EXPECT_EQ(ChoosePrefill(w, {4'000}, 0), 1u);
}

TEST(Routing, BetweenTwoThatAreAsGoodAsEqualChanceDecides) {
  std::vector<RouteCandidate> w = {Priced(10, 100'000), Priced(10, 99'000), Priced(10, 150'000)};
  EXPECT_EQ(ChoosePrefill(w, {100}, 0), 1u);
  EXPECT_EQ(ChoosePrefill(w, {100}, 1), 0u);
  w[0].costs.queued_us = 110'000;
  EXPECT_EQ(ChoosePrefill(w, {100}, 1), 1u) << "more than two in a hundred apart";
}

TEST(Routing, WithoutGoodPredictionsTokensAreCounted) {
  std::vector<RouteCandidate> w = {Priced(10, 1'000), Priced(10, 500'000)};
  w[0].queued_prompt_tokens = 300;
  EXPECT_EQ(ChoosePrefill(w, {100}, 0), 0u);
  w[1].costs.error = 0.21;
  EXPECT_EQ(ChoosePrefill(w, {100}, 0), 1u);
  w[1].costs.error = 0.2;
  w[1].costs.prompt_us_per_token = 0;
  EXPECT_FALSE(CostsAreKnown(w));
  w[1].usable = false;
  EXPECT_TRUE(CostsAreKnown(w)) << "one that takes nothing is not asked";
}

TEST(Routing, AnswersAvoidTheSlowWorker) {
  const std::vector<RouteCandidate> w = {Priced(10, 0), Priced(30, 0)};
  EXPECT_EQ(ChooseDecode(w, 10), 0u);
  std::vector<RouteCandidate> busy = w;
  busy[0].running = 6;  // seven rows cost more than two slow ones
  EXPECT_EQ(ChooseDecode(busy, 10), 1u);
}

TEST(Routing, AnswersBalanceRequestsThenContext) {
  EXPECT_EQ(ChooseDecode(std::vector{Candidate(3, 0), Candidate(2, 50'000)}, 10), 1u);
  EXPECT_EQ(ChooseDecode(std::vector{Candidate(2, 60'000), Candidate(2, 50'000)}, 10), 1u);
  // A context of three million tokens weighs as much as a request.
  EXPECT_EQ(ChooseDecode(std::vector{Candidate(2, 3'200'000), Candidate(3, 0)}, 10), 1u);
  EXPECT_EQ(ChooseDecode(std::vector{Candidate(2, 2'800'000), Candidate(3, 0)}, 10), 0u);
}

TEST(Routing, WithoutRoomOnlyWhenNobodyHasRoom) {
  std::vector<RouteCandidate> w = {Candidate(0, 0), Candidate(5, 0)};
  w[0].free_tokens = 100;
  EXPECT_EQ(ChooseDecode(w, 101), 1u);
  EXPECT_EQ(ChooseDecode(w, 100), 0u);
  w[1].free_tokens = 50;
  EXPECT_EQ(ChooseDecode(w, 101), 0u);
}

TEST(Routing, UnusableWorkersGetNothing) {
  std::vector<RouteCandidate> w = {Candidate(0, 0), Candidate(5, 0)};
  w[0].usable = false;
  EXPECT_EQ(ChooseDecode(w, 1), 1u);
  EXPECT_EQ(ChoosePrefill(w, {10}, 0), 1u);
  w[1].usable = false;
  EXPECT_EQ(ChooseDecode(w, 1), std::nullopt);
  EXPECT_EQ(ChoosePrefill({}, {10}, 0), std::nullopt);
}

TEST(Routing, ABurstOfEqualRequestsSpreadsWithinOne) {
  std::vector<RouteCandidate> w(7, Candidate(0, 0));
  for (int i = 0; i < 100; ++i) {
    RouteCandidate& chosen = w[*ChooseDecode(w, 4'000)];
    ++chosen.running;
    chosen.kv_tokens += 4'000;
  }
  const auto [least, most] = std::minmax_element(
      w.begin(), w.end(), [](const auto& a, const auto& b) { return a.running < b.running; });
  EXPECT_LE(most->running - least->running, 1);
}

TEST(Routing, AWorkerTakesWhatItRunsAndAboutOneStepBeyond) {
  RouteCandidate w = Candidate(4, 0, 100);
  EXPECT_TRUE(HasCredit(w, RequestClass::kInteractive)) << "nobody knows how much it can run";
  w.max_running = 4;
  EXPECT_TRUE(HasCredit(w, RequestClass::kInteractive));
  w.running = 6;
  EXPECT_FALSE(HasCredit(w, RequestClass::kInteractive)) << "two wait for a place already";
  w.running = 3;
  w.queued_prompt_tokens = 5'000;
  EXPECT_FALSE(HasCredit(w, RequestClass::kInteractive));
  RouteCandidate priced = Priced(10, 200'000);
  priced.max_running = 4;
  priced.queued_prompt_tokens = 50'000;
  EXPECT_TRUE(HasCredit(priced, RequestClass::kInteractive))
      << "tokens do not count where costs are known";
  EXPECT_FALSE(HasCredit(priced, RequestClass::kBatch)) << "more urgent work may come";
  priced.costs.queued_us = 300'000;
  EXPECT_FALSE(HasCredit(priced, RequestClass::kInteractive));
  priced.running = 0;
  priced.queued_prompt_tokens = 0;
  EXPECT_TRUE(HasCredit(priced, RequestClass::kInteractive)) << "it has nothing to do";
}

TEST(Routing, WorkIsThePromptAndAShareOfTheStepsOfTheAnswer) {
  RouteCandidate w = Priced(10, 0);
  w.running = 3;
  w.costs.step_us = 400;
  w.costs.step_us_per_token = 0.5;
  EXPECT_DOUBLE_EQ(WorkUs(w, {100}, 0).value(), 1'000);
  EXPECT_DOUBLE_EQ(WorkUs(w, {100}, 20).value(), 1'000 + 20 * (400.0 / 4 + 10 + 0.5 * 110));
  w.costs.error = 0.5;
  EXPECT_FALSE(WorkUs(w, {100}, 20).has_value());
}

}  // namespace
}  // namespace deepinfer
