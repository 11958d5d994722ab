#include "engine/watchdog.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/fake_clock.h"

namespace deepinfer {
namespace {

// Looks happen when the test says so: the watchdog's own thread is never started.
class WatchdogTest : public ::testing::Test {
 protected:
  FakeClock clock_;
  std::vector<std::string> causes_;
  int64_t still_us_ = 0;
  Watchdog watchdog_{&clock_, [this](std::string_view cause, int64_t still_us) {
                       causes_.emplace_back(cause);
                       still_us_ = still_us;
                     }};

  // The engine's loop turns while it waits.
  void TurnsAndLooks(bool has_work, int64_t us) {
    for (int64_t passed = 0; passed < us; passed += 100'000) {
      clock_.Advance(100'000);
      watchdog_.NoteTurn(has_work);
      watchdog_.Look();
    }
  }
};

TEST_F(WatchdogTest, WorkWithoutTheEndOfAStepIsAHangReportedOnce) {
  watchdog_.NoteTurn(true);
  TurnsAndLooks(true, Watchdog::kLimitUs - 100'000);
  EXPECT_TRUE(watchdog_.healthy());
  TurnsAndLooks(true, 300'000);
  EXPECT_FALSE(watchdog_.healthy());
  TurnsAndLooks(true, 3 * Watchdog::kLimitUs);
  EXPECT_EQ(causes_, std::vector<std::string>{"no step ends"});
  EXPECT_EQ(still_us_, Watchdog::kLimitUs + 100'000);
}

TEST_F(WatchdogTest, TheEndOfAStepMakesItHealthyAgainAndTheNextHangIsANewOne) {
  for (size_t hangs = 1; hangs <= 2; ++hangs) {
    watchdog_.NoteTurn(true);
    TurnsAndLooks(true, Watchdog::kLimitUs + 200'000);
    EXPECT_FALSE(watchdog_.healthy());
    EXPECT_EQ(causes_.size(), hangs);
    watchdog_.NoteStep();
    watchdog_.Look();
    EXPECT_TRUE(watchdog_.healthy());
  }
}

TEST_F(WatchdogTest, StepsThatEndKeepItHealthyHoweverLongThereIsWork) {
  watchdog_.NoteTurn(true);
  for (int i = 0; i < 10; ++i) {
    TurnsAndLooks(true, Watchdog::kLimitUs - 100'000);
    watchdog_.NoteStep();
  }
  EXPECT_TRUE(causes_.empty());
}

TEST_F(WatchdogTest, WithoutWorkThereIsNothingToWaitFor) {
  watchdog_.NoteTurn(true);
  TurnsAndLooks(true, Watchdog::kLimitUs / 2);
  TurnsAndLooks(false, 10 * Watchdog::kLimitUs);
  // What comes then has its whole time.
  TurnsAndLooks(true, Watchdog::kLimitUs - 200'000);
  EXPECT_TRUE(causes_.empty());
}

TEST_F(WatchdogTest, AnEngineThreadThatDoesNotComeBackIsAHangWithOrWithoutWork) {
  watchdog_.NoteTurn(false);
  clock_.Advance(Watchdog::kLimitUs);
  watchdog_.Look();
  watchdog_.Look();
  EXPECT_EQ(causes_, std::vector<std::string>{"the engine thread is held"});
  EXPECT_FALSE(watchdog_.healthy());
}

TEST_F(WatchdogTest, AMachineThatSleptIsNoHang) {
  watchdog_.NoteTurn(true);
  clock_.Advance(100 * Watchdog::kLimitUs);
  watchdog_.Look();
  EXPECT_TRUE(watchdog_.healthy());
  // The step goes on and ends before the next look.
  watchdog_.NoteStep();
  watchdog_.NoteTurn(true);
  watchdog_.Look();
  EXPECT_TRUE(watchdog_.healthy());
  EXPECT_TRUE(causes_.empty());
}

}  // namespace
}  // namespace deepinfer
