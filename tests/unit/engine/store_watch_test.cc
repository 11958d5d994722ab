// The alarm for a cache that is written and never read.

#include "engine/store_watch.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

constexpr int64_t kHourUs = int64_t{3600} * 1'000'000;
constexpr int64_t kBlockBytes = 100'000;
constexpr int64_t kDayOfWrites = 2'000'000;  // blocks, 200 GB

TEST(WriteAlarm, NeedsMuchWrittenAndNextToNothingRead) {
  WriteAlarm alarm;
  EXPECT_FALSE(alarm.Observe(0, 0, 0, kBlockBytes));
  EXPECT_FALSE(alarm.Observe(kHourUs, 900'000, 0, kBlockBytes)) << "90 GB are not much";
  EXPECT_TRUE(alarm.Observe(2 * kHourUs, kDayOfWrites, 0, kBlockBytes));
  EXPECT_TRUE(alarm.Observe(3 * kHourUs, kDayOfWrites, 1999, kBlockBytes));
  EXPECT_FALSE(alarm.Observe(3 * kHourUs, kDayOfWrites, 2001, kBlockBytes));
}

TEST(WriteAlarm, LooksAtOneDay) {
  WriteAlarm alarm;
  int64_t written = 0, read = 0;
  for (int64_t hour = 0; hour <= 30; ++hour) {
    written += 100'000;
    read += 50'000;
    EXPECT_FALSE(alarm.Observe(hour * kHourUs, written, read, kBlockBytes)) << hour;
  }
  // Reader and writer stop agreeing.
  bool is_on = false;
  for (int64_t hour = 31; hour <= 60; ++hour) {
    written += 100'000;
    is_on = alarm.Observe(hour * kHourUs, written, read, kBlockBytes);
    EXPECT_FALSE(is_on && hour < 50) << hour;
  }
  EXPECT_TRUE(is_on) << "reads of more than a day ago do not count";
}

}  // namespace
}  // namespace deepinfer
