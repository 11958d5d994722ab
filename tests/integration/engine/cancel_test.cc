// Cancellation in the states that last only a moment: waiting for a leader, giving up memory,
// getting it back. The others: lifecycle_test.cc, park_test.cc. Others keep their bits and nothing
// is held.

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>

#include "integration/engine/engine_fixture.h"

namespace deepinfer {
namespace {

class Cancelling : public EngineTest {
 protected:
  // Room for little more than one long sequence, so that several must take turns.
  static EngineOptions Tight(int64_t image_bytes) {
    EngineOptions o;
    o.kv_cache_tokens = 5 * 128;
    o.max_num_seqs = 4;
    o.replay = ReplayMode::kExact;
    o.swa_pool_bytes = image_bytes;
    return o;
  }
  static std::vector<EngineRequest> Crowd() {
    std::vector<EngineRequest> crowd;
    for (uint32_t i = 0; i < 4; ++i) {
      crowd.push_back(StrictRequest(RandomPrompt(200 + 100 * static_cast<int32_t>(i % 2), 90 + i),
                                    100, i, std::to_string(i)));
    }
    return crowd;
  }
  std::vector<std::unique_ptr<TokenCollector>> RunAlone() {
    Start(Tight(-1), 512);
    std::vector<std::unique_ptr<TokenCollector>> out;
    for (EngineRequest& r : Crowd()) out.push_back(Run(std::move(r)));
    return out;
  }

  // Runs the crowd and cancels the victim at the first look at the clock where `now` holds.
  void CancelWhen(const std::function<bool(const EngineStatistics&)>& now, size_t victim,
                  const std::vector<std::unique_ptr<TokenCollector>>& want) {
    const auto done = std::make_shared<std::atomic<bool>>(false);
    clock_.OnRead([now, victim, done, engine = engine_.get()] {
      if (*done || !now(engine->Statistics())) return;
      *done = true;
      engine->Cancel(std::to_string(victim));
    });
    const auto got = RunTogether(Crowd());
    clock_.OnRead({});
    EXPECT_TRUE(*done) << "the moment never came";
    for (size_t i = 0; i < want.size(); ++i) {
      const std::string where =
          "victim " + std::to_string(victim) + " request " + std::to_string(i);
      if (i != victim) {
        ExpectSameAnswer(*got[i], *want[i], where);
        continue;
      }
      // Its tokens so far are those it would have had.
      const std::vector<int32_t>&ids = got[i]->ids(), &all = want[i]->ids();
      ASSERT_LE(ids.size(), all.size());
      EXPECT_TRUE(std::equal(ids.begin(), ids.end(), all.begin())) << where;
    }
    ExpectNothingHeld(StatisticsWhenIdle(*engine_));
  }
};

TEST_F(Cancelling, WhileStateIsRebuiltWithoutItsImage) {
  const auto want = RunAlone();
  // One or two of them are being rebuilt at that moment.
  for (size_t victim = 0; victim < 4; ++victim) {
    Start(Tight(0), 512);
    CancelWhen([](const EngineStatistics& s) { return s.resumes_rebuilt >= 1; }, victim, want);
  }
}

TEST_F(Cancelling, WhileOneIsParked) {
  const auto want = RunAlone();
  for (size_t victim = 0; victim < 4; ++victim) {
    Start(Tight(-1), 512);
    CancelWhen([](const EngineStatistics& s) { return s.parked > 0; }, victim, want);
  }
}

TEST_F(Cancelling, AroundTheMomentOfParking) {
  EngineOptions o;
  for (int moment = 0; moment < 12; ++moment) {
    Start(o, 2048);
    std::mutex mutex;
    std::vector<TokenEvent> kept;
    ASSERT_TRUE(engine_
                    ->Submit(StrictRequest(RandomPrompt(200, 81), 150, 3, std::string("slow")),
                             [&](TokenEvent event) {
                               const std::lock_guard lock(mutex);
                               kept.push_back(std::move(event));
                             })
                    .ok());
    const auto num_kept = [&] {
      const std::lock_guard lock(mutex);
      return kept.size();
    };
    SpinUntil("a full window", [&] { return num_kept() >= kDeliveryWindow; });
    // From the look after which it must give up its place, so many looks later.
    const auto looks = std::make_shared<std::atomic<int>>(-1);
    clock_.OnRead([looks, moment, engine = engine_.get()] {
      if (*looks >= 0 && (*looks)++ == moment) engine->Cancel("slow");
    });
    Run(GreedyRequest({4, 5}, 2, std::string("sees that it stalls")));
    clock_.Advance(3'000'000);
    *looks = 0;
    SpinUntil("the moment", [&] {
      Run(GreedyRequest({4, 5}, 3, std::string("quick")));
      return *looks > moment;
    });
    clock_.OnRead({});
    engine_->Drain(clock_.NowUs() + 10'000'000);
    EXPECT_EQ(kept.back().finish, FinishReason::kCancelled) << "moment " << moment;
    ExpectNothingHeld(StatisticsWhenIdle(*engine_));
  }
}

TEST_F(Cancelling, WhileABranchWaitsForItsLeader) {
  EngineOptions o;
  o.max_num_batched_tokens = 16;
  for (const bool leader_too : {false, true}) {
    Start(o);
    const auto cancelled = std::make_shared<std::atomic<bool>>(false);
    clock_.OnRead([cancelled, leader_too, engine = engine_.get()] {
      if (*cancelled || engine->Statistics().pending != 2) return;
      *cancelled = true;
      if (leader_too) engine->Cancel("leader");
      engine->Cancel("branch");
    });
    std::vector<EngineRequest> requests;
    for (const char* id : {"leader", "branch", "other"}) {
      requests.push_back(StrictRequest(RandomPrompt(150, 82), 5, requests.size(), std::string(id)));
      if (requests.size() > 1) requests.back().branch_of = "leader";
    }
    const auto out = RunTogether(std::move(requests));
    EXPECT_EQ(out[0]->Wait().finish, leader_too ? FinishReason::kCancelled : FinishReason::kLength);
    EXPECT_EQ(out[1]->Wait().finish, FinishReason::kCancelled);
    EXPECT_TRUE(out[1]->ids().empty());
    EXPECT_EQ(out[2]->Wait().finish, FinishReason::kLength);
    EXPECT_EQ(out[2]->ids().size(), 5u);
    clock_.OnRead({});
    ExpectNothingHeld(StatisticsWhenIdle(*engine_));
  }
}

}  // namespace
}  // namespace deepinfer
