// Sequences that give up their memory and get it back: from the image bit for bit, without it by
// running rows again (architecture.md §8).

#include <gtest/gtest.h>

#include <limits>
#include <mutex>

#include "integration/engine/engine_fixture.h"

namespace deepinfer {
namespace {

class Parking : public EngineTest {
 protected:
  // Room for little more than one long sequence, so that several must take turns.
  static EngineOptions Tight() {
    EngineOptions o;
    o.kv_cache_tokens = 5 * 128;
    o.max_num_seqs = 4;
    o.replay = ReplayMode::kExact;
    return o;
  }
  static std::vector<EngineRequest> Crowd() {
    std::vector<EngineRequest> crowd;
    for (uint32_t i = 0; i < 4; ++i) {
      crowd.push_back(StrictRequest(RandomPrompt(200 + 100 * static_cast<int32_t>(i % 2), 70 + i),
                                    120, i, std::to_string(i)));
    }
    return crowd;
  }
  std::vector<std::unique_ptr<TokenCollector>> RunAlone() {
    std::vector<std::unique_ptr<TokenCollector>> out;
    for (EngineRequest& r : Crowd()) out.push_back(Run(std::move(r)));
    return out;
  }
};

TEST_F(Parking, WithTheImageNothingIsComputedAgain) {
  Start(Tight(), 512);
  const auto want = RunAlone();
  EXPECT_EQ(engine_->Statistics().parks, 0);
  Start(Tight(), 512);
  const auto got = RunTogether(Crowd());
  const EngineStatistics s = engine_->Statistics();
  EXPECT_GT(s.parks, 0);
  for (size_t i = 0; i < want.size(); ++i) {
    ExpectSameAnswer(*got[i], *want[i], "request " + std::to_string(i));
    EXPECT_FALSE(got[i]->Wait().counters.approximate_resume);
  }
  EXPECT_EQ(s.parks, s.resumes_from_image + s.resumes_rebuilt);
  EXPECT_EQ(s.resumes_rebuilt, 0);
}

TEST_F(Parking, WithoutTheImageExactResumeGivesTheSameBits) {
  Start(Tight(), 512);
  const auto want = RunAlone();
  EngineOptions o = Tight();
  o.swa_pool_bytes = 0;
  Start(o, 512);
  const auto got = RunTogether(Crowd());
  const EngineStatistics s = engine_->Statistics();
  EXPECT_GT(s.resumes_rebuilt, 0);
  EXPECT_EQ(s.resumes_from_image, 0);
  for (size_t i = 0; i < want.size(); ++i) {
    ExpectSameAnswer(*got[i], *want[i], "request " + std::to_string(i));
    EXPECT_FALSE(got[i]->Wait().counters.approximate_resume);
  }
}

TEST_F(Parking, WithoutPrefixCacheItWorksTheSame) {
  Start(Tight(), 512);
  const auto want = RunAlone();
  EngineOptions o = Tight();
  o.prefix_cache = false;
  Start(o, 512);
  const auto got = RunTogether(Crowd());
  EXPECT_GT(engine_->Statistics().parks, 0);
  for (size_t i = 0; i < want.size(); ++i) ExpectSameAnswer(*got[i], *want[i]);
}

TEST_F(Parking, BoundedResumeIsReported) {
  EngineOptions o = Tight();
  o.swa_pool_bytes = 0;
  o.resume = ReplayMode::kBounded;
  Start(o, 512);
  const auto got = RunTogether(Crowd());
  const EngineStatistics s = engine_->Statistics();
  EXPECT_GT(s.resumes_rebuilt, 0);
  int64_t flagged = 0;
  for (const auto& out : got) {
    EXPECT_EQ(out->ids().size(), 120u);
    flagged += out->Wait().counters.approximate_resume;
  }
  EXPECT_GT(flagged, 0);
}

TEST_F(Parking, AReceiverThatDoesNotKeepUpStopsOnlyItsOwnSequence) {
  EngineOptions o = OneTokenPerStep();
  o.max_num_seqs = 4;
  Start(o, 2048);
  EngineRequest slow = StrictRequest(RandomPrompt(200, 80), 150, 3, std::string("slow"));
  const auto want = Run(slow);
  std::mutex mutex;
  std::vector<TokenEvent> kept;
  ASSERT_TRUE(engine_
                  ->Submit(slow,
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
  // Others run on; it does not.
  EXPECT_EQ(Run(StrictRequest({4, 5}, 30, 1, std::string("quick")))->ids().size(), 30u);
  EXPECT_LE(num_kept(), kDeliveryWindow + 1u);
  EXPECT_EQ(engine_->Statistics().parked, 0);
  clock_.Advance(3'000'000);
  EXPECT_EQ(Run(StrictRequest({4, 5}, 30, 1, std::string("quick2")))->ids().size(), 30u);
  EXPECT_EQ(engine_->Statistics().parked, 1) << "after two seconds it loses its place";
  // The receiver reads on: everything comes, in order.
  std::vector<int32_t> ids;
  bool done = false;
  SpinUntil("the rest of the answer", [&] {
    std::vector<TokenEvent> taken;
    {
      const std::lock_guard lock(mutex);
      taken.swap(kept);
    }
    for (const TokenEvent& event : taken) {
      ids.insert(ids.end(), event.ids.begin(), event.ids.end());
      done |= event.finish != FinishReason::kNone;
    }
    return done;
  });
  EXPECT_EQ(ids, want->ids());
  EXPECT_GT(engine_->Statistics().resumes_from_image, 0);
}

TEST_F(Parking, CancelWhileParkedGivesTheImageBack) {
  EngineOptions o;
  Start(o, 2048);
  std::mutex mutex;
  std::vector<TokenEvent> kept;
  bool ended = false;
  ASSERT_TRUE(engine_
                  ->Submit(StrictRequest(RandomPrompt(200, 81), 150, 3, std::string("slow")),
                           [&](TokenEvent event) {
                             const std::lock_guard lock(mutex);
                             ended = event.finish == FinishReason::kCancelled;
                             kept.push_back(std::move(event));
                           })
                  .ok());
  const auto num_kept = [&] {
    const std::lock_guard lock(mutex);
    return kept.size();
  };
  SpinUntil("a full window", [&] { return num_kept() >= kDeliveryWindow; });
  SpinUntil("a parked sequence", [&] {
    clock_.Advance(3'000'000);
    Run(GreedyRequest({4, 5}, 2, std::string("quick")));
    return engine_->Statistics().parked > 0;
  });
  engine_->Cancel("slow");
  engine_->Drain(std::numeric_limits<int64_t>::max());
  EXPECT_TRUE(ended);
}

}  // namespace
}  // namespace deepinfer
