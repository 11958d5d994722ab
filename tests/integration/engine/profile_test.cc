// Profiles: the parts of the next steps in order, ended by their number, a deadline or the engine.

#include <gtest/gtest.h>

#include <future>

#include "integration/engine/engine_fixture.h"

namespace deepinfer {
namespace {

class Profiles : public EngineTest {
 protected:
  static constexpr int64_t kNever = int64_t{1} << 60;

  std::future<std::vector<StepTrace>> Profile(int32_t num_steps, int64_t deadline_us) {
    const auto promise = std::make_shared<std::promise<std::vector<StepTrace>>>();
    const Status status = engine_->Profile(
        num_steps, deadline_us,
        [promise](std::vector<StepTrace> steps) { promise->set_value(std::move(steps)); });
    EXPECT_TRUE(status.ok()) << status.ToString();
    return promise->get_future();
  }
};

TEST_F(Profiles, ShowTheNextStepsWithTheirPartsInOrder) {
  Start(OneTokenPerStep());
  clock_.OnRead([this] { clock_.Advance(1); });
  auto profile = Profile(5, kNever);
  EngineRequest r = GreedyRequest(RandomPrompt(200, 1), 8);
  r.sampling.ignore_eos = true;
  Run(r);
  const std::vector<StepTrace> steps = profile.get();
  ASSERT_EQ(steps.size(), 5u);
  EXPECT_GT(steps[0].prefill_rows, 0);
  EXPECT_EQ(steps[4].decode_rows, 1);
  for (size_t i = 0; i < steps.size(); ++i) {
    const StepTrace& s = steps[i];
    EXPECT_EQ(s.num_sequences, 1);
    EXPECT_EQ(s.number, steps[0].number + static_cast<int64_t>(i));
    const int64_t times[] = {s.plan_us,     s.launched_us, s.begin_us,   s.copied_us,
                             s.computed_us, s.end_us,      s.process_us, s.processed_us};
    for (size_t t = 1; t < std::size(times); ++t)
      EXPECT_LT(times[t - 1], times[t]) << i << ' ' << t;
  }
  clock_.OnRead({});
}

TEST_F(Profiles, EndWithTheStepsTheyHave) {
  auto none = Profile(3, clock_.NowUs() + 1000);
  EXPECT_EQ(engine_->Profile(1, kNever, [](std::vector<StepTrace>) {}).code(),
            StatusCode::kResourceExhausted)
      << "one at a time";
  clock_.Advance(2000);
  EXPECT_TRUE(none.get().empty());
  auto cut = Profile(50, kNever);
  Run(GreedyRequest({5, 6, 7}, 1));
  engine_.reset();
  EXPECT_GE(cut.get().size(), 1u);
}

TEST_F(Profiles, NumbersOutOfRangeAreRefused) {
  for (int32_t n : {0, -1, kMaxProfileSteps + 1}) {
    EXPECT_EQ(engine_->Profile(n, kNever, [](std::vector<StepTrace>) {}).code(),
              StatusCode::kInvalidRequest);
  }
}

}  // namespace
}  // namespace deepinfer
