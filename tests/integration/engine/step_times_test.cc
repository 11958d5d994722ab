// The learned step times survive a restart of the engine.

#include <gtest/gtest.h>

#include "engine/step_time_file.h"
#include "integration/engine/engine_fixture.h"

namespace deepinfer {
namespace {

class StepTimes : public EngineTest {
 protected:
  void SetUp() override { StartWith(path_); }

  void StartWith(const std::string& path) {
    EngineOptions o;
    o.step_time_file = path;
    Start(o);
  }
  // Every look at the clock takes a microsecond, so that steps have a length.
  void RunSome() {
    clock_.OnRead([this] { clock_.Advance(1); });
    EngineRequest r = GreedyRequest(RandomPrompt(40, 1), 60);
    r.sampling.ignore_eos = true;
    Run(r);
    // A step may still be in flight; it needs a length too.
    (void)StatisticsWhenIdle(*engine_);
    clock_.OnRead({});
  }
  int64_t NumPredictions() const {
    int64_t n = 0;
    for (int64_t count : engine_->Statistics().step_prediction_error.counts()) n += count;
    return n;
  }

  TempDir dir_;
  const std::string path_ = dir_.path() + "/made/step_times";
};

TEST_F(StepTimes, ANewEnginePredictsFromItsFirstStepOn) {
  RunSome();
  const int64_t steps = StatisticsWhenIdle(*engine_).steps;
  EXPECT_LT(NumPredictions(), steps) << "nothing is known before the first step";
  engine_.reset();
  ASSERT_TRUE(LoadStepTimes(path_).ok());
  StartWith(path_);
  RunSome();
  const int64_t steps_after = StatisticsWhenIdle(*engine_).steps;
  EXPECT_EQ(NumPredictions(), steps_after);
}

TEST_F(StepTimes, AFileThatIsNotOursIsIgnoredAndReplaced) {
  engine_.reset();
  dir_.Write("other", "something else");
  const std::string other = dir_.path() + "/other";
  EXPECT_EQ(LoadStepTimes(other).status().code(), StatusCode::kInvalidRequest);
  EXPECT_EQ(LoadStepTimes(dir_.path() + "/none").status().code(), StatusCode::kNotFound);
  StartWith(other);
  RunSome();
  engine_.reset();
  EXPECT_TRUE(LoadStepTimes(other).ok());
}

TEST_F(StepTimes, AnEngineThatLearnedNothingLeavesTheFileAlone) {
  engine_.reset();
  EXPECT_EQ(LoadStepTimes(path_).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace deepinfer
