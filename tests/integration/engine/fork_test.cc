// Choices of one prompt that share its computation: equal to single runs, and independent of each
// other's fate.

#include <gtest/gtest.h>

#include <numeric>

#include "engine/step_executor.h"
#include "integration/engine/engine_fixture.h"

namespace deepinfer {
namespace {

class Forking : public EngineTest {
 protected:
  static EngineOptions Options() {
    EngineOptions o;
    o.max_num_seqs = 12;
    o.max_num_batched_tokens = 100;
    o.prefix_cache = false;  // what is shared is shared by the fork
    return o;
  }
  static std::vector<EngineRequest> Choices(int32_t prompt, uint64_t n, int32_t max_tokens) {
    std::vector<EngineRequest> choices;
    for (uint64_t b = 0; b < n; ++b) {
      EngineRequest r = StrictRequest(RandomPrompt(prompt, 90), max_tokens, 1000 + b,
                                      "choice" + std::to_string(b));
      if (b > 0) r.branch_of = "choice0";
      choices.push_back(std::move(r));
    }
    return choices;
  }
};

TEST_F(Forking, EightBranchesEqualEightSingleRuns) {
  for (int32_t prompt : {1, 2, 127, 128, 129, 256, 301}) {
    SCOPED_TRACE("prompt " + std::to_string(prompt));
    Start(Options());
    std::vector<std::unique_ptr<TokenCollector>> want;
    for (EngineRequest& r : Choices(prompt, 8, 12)) {
      r.branch_of.clear();
      want.push_back(Run(std::move(r)));
    }
    Start(Options());
    const auto got = RunTogether(Choices(prompt, 8, 12));
    for (size_t b = 0; b < 8; ++b) {
      ExpectSameAnswer(*got[b], *want[b], "branch " + std::to_string(b));
      const RequestCounters c = got[b]->Wait().counters;
      EXPECT_EQ(c.cached_tokens + c.computed_tokens, prompt);
      EXPECT_EQ(c.computed_tokens, b == 0 ? prompt : 1) << "the prompt is computed once";
    }
    EXPECT_NE(got[0]->ids(), got[1]->ids());
  }
}

TEST_F(Forking, ALeaderThatIsHandedOverBelowTheDecoderSharesNothing) {
  Start(Options());
  std::vector<EngineRequest> choices = Choices(200, 2, 12);
  choices[1].branch_of.clear();
  const auto want = Run(std::move(choices[1]));
  Start(Options());
  choices = Choices(200, 2, 12);
  choices[0].hand_off = HandOffProfile::kEncoder;
  const auto got = RunTogether(std::move(choices));
  EXPECT_EQ(got[0]->Wait().finish, FinishReason::kHandedOff);
  ExpectSameAnswer(*got[1], *want);
}

TEST_F(Forking, BranchesOutliveTheirLeader) {
  Start(Options());
  std::vector<EngineRequest> choices = Choices(200, 3, 20);
  choices[0].sampling.max_tokens = 1;
  const auto got = RunTogether(std::move(choices));
  EXPECT_EQ(got[0]->ids().size(), 1u);
  EXPECT_EQ(got[1]->ids().size(), 20u);
  EXPECT_EQ(got[2]->ids().size(), 20u);
}

TEST_F(Forking, ALeaderThatEndsEarlyIsReplacedByTheNext) {
  EngineOptions o = Options();
  o.max_num_batched_tokens = 16;
  Start(o);
  std::vector<std::unique_ptr<TokenCollector>> want;
  for (EngineRequest& r : Choices(200, 3, 6)) want.push_back(Run(std::move(r)));
  Start(o);
  clock_.OnRead([engine = engine_.get()] {
    const EngineStatistics s = engine->Statistics();
    if (s.pending == 2 && s.kv_tokens >= 32) engine->Cancel("choice0");
  });
  const auto got = RunTogether(Choices(200, 3, 6));
  EXPECT_EQ(got[0]->Wait().finish, FinishReason::kCancelled);
  ExpectSameAnswer(*got[1], *want[1]);
  ExpectSameAnswer(*got[2], *want[2]);
  EXPECT_EQ(got[2]->Wait().counters.computed_tokens, 1);
}

TEST_F(Forking, WithoutFreeSlotsBranchesQueueLikeOthers) {
  EngineOptions o = Options();
  o.max_num_seqs = 2;
  Start(o);
  const auto got = RunTogether(Choices(60, 6, 5));
  for (const auto& out : got) EXPECT_EQ(out->ids().size(), 5u);
}

TEST_F(Forking, SpareSlotsServeBranchesAndTheRestShareOneMoreRun) {
  struct Case {
    int32_t max_num_seqs, most_runs;
  };
  // Thirteen slots, and five.
  for (const Case& c : {Case{10, 1}, Case{4, 4}}) {
    EngineOptions o = Options();
    o.max_num_seqs = c.max_num_seqs;
    Start(o);
    int32_t runs = 0;
    for (const auto& out : RunTogether(Choices(301, 12, 5))) {
      EXPECT_EQ(out->ids().size(), 5u);
      runs += out->Wait().counters.computed_tokens == 301;
    }
    EXPECT_LE(runs, c.most_runs) << "of the prompt with " << c.max_num_seqs << " sequences";
  }
}

TEST_F(Forking, BranchesAreNoHitsOfTheCache) {
  Start(Options());
  for (const auto& out : RunTogether(Choices(301, 4, 3))) {
    const RequestCounters c = out->Wait().counters;
    EXPECT_EQ(std::accumulate(c.cached_by_tier.begin(), c.cached_by_tier.end(), int64_t{0}),
              c.cached_tokens);
  }
  const EngineStatistics s = StatisticsWhenIdle(*engine_);
  for (const auto& by_tier : {s.hit_by_tier, s.cached_by_tier}) {
    EXPECT_EQ(std::accumulate(by_tier.begin(), by_tier.end(), int64_t{0}), 0);
  }
  EXPECT_EQ(s.cached_tokens, 0);
  EXPECT_EQ(s.replayed_tokens, 0);
  EXPECT_EQ(std::accumulate(s.miss_tokens.begin(), s.miss_tokens.end(), int64_t{0}), 256)
      << "the leader's";
}

TEST_F(Forking, ADifferentPromptOrScopeIsNotShared) {
  Start(Options());
  std::vector<EngineRequest> choices = Choices(100, 3, 4);
  choices[1].prompt_ids[7] = 11;
  choices[2].cache_scope = Sha256("other");
  const auto got = RunTogether(std::move(choices));
  for (const auto& out : got) EXPECT_EQ(out->Wait().counters.computed_tokens, 100);
}

TEST_F(Forking, CancelledBranchesLeaveTheOthersAlone) {
  Start(Options());
  std::vector<std::unique_ptr<TokenCollector>> want;
  for (EngineRequest& r : Choices(150, 4, 30)) want.push_back(Run(std::move(r)));
  Start(Options());
  std::vector<EngineRequest> choices = Choices(150, 4, 30);
  choices[0].sampling.max_tokens = 3;
  choices[2].sampling.max_tokens = 9;
  const auto got = RunTogether(std::move(choices));
  ExpectSameAnswer(*got[1], *want[1]);
  ExpectSameAnswer(*got[3], *want[3]);
}

// The rings of the leader are copied; rows that drafts could not read in them are no better in the
// copy.
TEST_F(Forking, ABranchKnowsWhichHiddenRowsItsLeaderLacks) {
  StepExecutor executor(model_->get(), Options(), &clock_);
  Sequence leader(GreedyRequest(RandomPrompt(40, 1), 4, "leader"), {}, {});
  Sequence branch(GreedyRequest(RandomPrompt(40, 1), 4, "branch"), {}, {});
  leader.device.context.kept_from = 40;
  auto job = std::make_unique<StepJob>();
  job->forks.push_back({&leader, &branch});
  executor.Launch(std::move(job));
  ASSERT_NE(executor.Wait(), nullptr);
  EXPECT_EQ(branch.device.context.kept_from, 40);
}

}  // namespace
}  // namespace deepinfer
