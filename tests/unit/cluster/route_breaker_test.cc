// Circuits open after failures, let one try through at a time, and forget.

#include "cluster/route_breaker.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

constexpr RouteBreakerOptions kOptions{
    .failures_to_open = 3, .window_us = 1000, .open_us = 100, .most_open_us = 300, .try_us = 50};

TEST(RouteBreaker, OpensAfterSoManyFailuresWithinTheWindow) {
  RouteBreaker breaker(kOptions);
  EXPECT_TRUE(breaker.empty());
  breaker.NoteFailure("a", 0);
  breaker.NoteFailure("a", 900);
  breaker.NoteFailure("a", 1100);  // the first counts no more
  EXPECT_TRUE(breaker.Allows("a", 1100));
  breaker.NoteFailure("a", 1200);
  EXPECT_FALSE(breaker.Allows("a", 1200));
  EXPECT_TRUE(breaker.Allows("b", 1200));
  EXPECT_EQ(breaker.num_open(1200), 1u);
  EXPECT_TRUE(breaker.Allows("a", 1300));
  EXPECT_EQ(breaker.num_openings(), 1);
}

class OpenedBreaker : public ::testing::Test {
 protected:
  OpenedBreaker() {
    for (int i = 0; i < 3; ++i) breaker_.NoteFailure("a", 0);
  }
  RouteBreaker breaker_{kOptions};
};

TEST_F(OpenedBreaker, FailuresOfWhatWasUnderWayDoNotProlongIt) {
  for (int i = 0; i < 9; ++i) breaker_.NoteFailure("a", 50);
  EXPECT_EQ(breaker_.num_openings(), 1);
  EXPECT_TRUE(breaker_.Allows("a", 100));
}

TEST_F(OpenedBreaker, HalfOpenItLetsOneTryThroughAtATime) {
  breaker_.NoteTry("a", 100);
  EXPECT_FALSE(breaker_.Allows("a", 120));
  EXPECT_TRUE(breaker_.Allows("a", 150)) << "nobody heard of the try again";
  breaker_.NoteTry("a", 150);
  breaker_.NoteFailure("a", 160);
  EXPECT_FALSE(breaker_.Allows("a", 359)) << "twice as long as before";
  EXPECT_TRUE(breaker_.Allows("a", 360));
  breaker_.NoteTry("a", 360);
  breaker_.NoteFailure("a", 370);
  EXPECT_TRUE(breaker_.Allows("a", 670)) << "no longer than the longest";
}

TEST_F(OpenedBreaker, ASuccessClosesIt) {
  breaker_.NoteTry("a", 100);
  breaker_.NoteSuccess("a");
  EXPECT_TRUE(breaker_.empty());
  breaker_.NoteFailure("a", 110);
  EXPECT_TRUE(breaker_.Allows("a", 110)) << "it begins anew";
}

TEST_F(OpenedBreaker, ForgetsWhatHasNotFailedForAWindow) {
  breaker_.NoteTry("a", 1200);
  EXPECT_TRUE(breaker_.empty());
  for (int i = 0; i < 100; ++i) breaker_.NoteFailure("w" + std::to_string(i), 2000);
  breaker_.NoteFailure("b", 3200);
  EXPECT_EQ(breaker_.num_open(3200), 0u);
  breaker_.NoteSuccess("b");
  EXPECT_TRUE(breaker_.empty()) << "states of workers that left are gone";
}

}  // namespace
}  // namespace deepinfer
