#include "sched/admission_queue.h"

#include <gtest/gtest.h>

#include <random>

#include "sched/admission.h"
#include "unit/sched/sched_test_util.h"

namespace deepinfer {
namespace {

TEST(AdmissionQueue, WindowHoldsTheMostUrgentAndTheOldestOfEveryClass) {
  AdmissionQueue queue;
  for (int64_t i = 0; i < 100; ++i) {
    queue.Add({i + 1, kRequestClasses[static_cast<size_t>(i % 3)], /*arrival_us=*/i,
               /*latest_start_us=*/1000 - i});
  }
  EXPECT_EQ(queue.size(), 100u);
  EXPECT_EQ(queue.size(RequestClass::kBatch), 33u);
  EXPECT_EQ(queue.Window(1), (std::vector<int64_t>{1, 2, 3, 98, 99, 100}));
  EXPECT_TRUE(queue.Remove(100));
  EXPECT_FALSE(queue.Remove(100));
  EXPECT_EQ(queue.Window(1), (std::vector<int64_t>{1, 2, 3, 97, 98, 99}));
}

TEST(AdmissionQueue, AWindowGivesTheSameFirstCandidatesAsTheWholeQueue) {
  std::mt19937 rng(7);
  for (int round = 0; round < 50; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    AdmissionQueue queue;
    PlannerSnapshot all = Snapshot();
    all.now_us = 5'000'000;
    for (int64_t id = 1; id <= 300; ++id) {
      PrefillInput c = Waiting(id, 100, static_cast<int64_t>(rng() % 5'000'000));
      c.holding.request_class = kRequestClasses[rng() % 3];
      if (rng() % 2 == 0) c.deadline_us = 4'000'000 + static_cast<int64_t>(rng() % 4'000'000);
      c.predicted_prefill_us = static_cast<int64_t>(rng() % 500'000);
      const int64_t start =
          c.deadline_us == kNoDeadlineUs ? kNoDeadlineUs : c.deadline_us - c.predicted_prefill_us;
      queue.Add({id, c.holding.request_class, c.arrival_us, start});
      all.prefill.push_back(c);
    }
    PlannerSnapshot window = all;
    window.prefill.clear();
    constexpr size_t kCount = 24;
    for (int64_t id : queue.Window(kCount)) {
      window.prefill.push_back(all.prefill[static_cast<size_t>(id - 1)]);
    }
    EXPECT_LE(window.prefill.size(), 6 * kCount);
    const auto want = CandidateOrder(all, false, false);
    const auto got = CandidateOrder(window, false, false);
    for (size_t i = 0; i < kCount; ++i) EXPECT_EQ(got[i]->holding.id, want[i]->holding.id) << i;
  }
}

}  // namespace
}  // namespace deepinfer
