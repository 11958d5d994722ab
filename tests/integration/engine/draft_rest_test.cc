// Which requests draft under given prices. The clock stands still, so steps cost what a stored
// model of step times says, and tries after the first ones get no allowance.

#include <gtest/gtest.h>

#include <fmt/core.h>

#include "integration/engine/engine_fixture.h"

namespace deepinfer {
namespace {

// Before anybody judges.
constexpr int64_t kFreeTries = 10;

class DraftRest : public EngineTest {
 protected:
  void StartWith(double step_us, double row_us) {
    engine_.reset();
    dir_.Write("step_times",
               fmt::format("step_time_model_v1 0 {} 0 0 0 0 {} 0 0", step_us, row_us * 8));
    EngineOptions o;
    o.step_time_file = dir_.path() + "/step_times";
    Start(o);
  }
  static EngineRequest Accepting(int32_t num_accepted, const std::string& id) {
    EngineRequest r = GreedyRequest(RandomPrompt(40, 5), 120, id);
    r.sampling.ignore_eos = true;
    r.forced_accepts = {num_accepted};
    return r;
  }

  TempDir dir_;
};

TEST_F(DraftRest, RowsAsDearAsTokensLetDraftsRest) {
  EngineRequest r = GreedyRequest(RandomPrompt(40, 5), 120);
  r.sampling.ignore_eos = true;
  Start(OneTokenPerStep());
  const auto want = Run(r);
  StartWith(0.0, 1000.0);
  ExpectSameAnswer(*Run(r), *want);
  const EngineStatistics s = StatisticsWhenIdle(*engine_);
  EXPECT_EQ(s.drafts, kFreeTries);
}

TEST_F(DraftRest, RowsThatCostNextToNothingLetAllDraft) {
  StartWith(1000.0, 1.0);
  EXPECT_EQ(Run(Accepting(4, "r"))->ids().size(), 120u);
  const EngineStatistics s = StatisticsWhenIdle(*engine_);
  // Five tokens a step, but for the first and the last ones.
  EXPECT_GE(s.drafts, 22);
  EXPECT_LE(s.steps, 30);
}

TEST_F(DraftRest, ARequestRestsWhileAnotherDrafts) {
  StartWith(1000.0, 100.0);
  std::vector<EngineRequest> requests;
  requests.push_back(Accepting(5, "good"));
  requests.push_back(Accepting(0, "poor"));
  const auto out = RunTogether(requests);
  const RequestCounters good = out[0]->Wait().counters, poor = out[1]->Wait().counters;
  EXPECT_GE(good.draft_accepted_tokens, 80);
  // 120 verifications if it went on.
  EXPECT_GT(poor.drafted_tokens, 0);
  EXPECT_LE(poor.drafted_tokens, 60 * 5);
}

}  // namespace
}  // namespace deepinfer
