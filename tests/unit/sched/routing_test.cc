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
  EXPECT_EQ(ChoosePrefill(w, 10, 0), 2u);
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
  EXPECT_EQ(ChoosePrefill(w, 10, 0), 1u);
  w[1].usable = false;
  EXPECT_EQ(ChooseDecode(w, 1), std::nullopt);
  EXPECT_EQ(ChoosePrefill({}, 10, 0), std::nullopt);
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

}  // namespace
}  // namespace deepinfer
