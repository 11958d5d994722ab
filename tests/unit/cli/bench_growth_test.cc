// The chart of how costs grow with the context.

#include "cli/bench_growth.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

TEST(Growth, IsRelativeToTheFewestTokensOfItsSeries) {
  const std::vector<GrowthSample> samples = {
      {"decode", 4096, 30, 250}, {"prefill", 128, 5, 7}, {"decode", 512, 20, 200}};
  const std::vector<ChartSeries> lines = GrowthSeries(samples);
  // One point says nothing of growth.
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].name, "decode");
  ASSERT_EQ(lines[0].points.size(), 2u);
  EXPECT_EQ(lines[0].points[0].x, 512);
  EXPECT_EQ(lines[0].points[0].y, 1);
  EXPECT_EQ(lines[0].points[1].x, 4096);
  EXPECT_EQ(lines[0].points[1].y, 1.5);
  EXPECT_EQ(lines[1].name, "decode, arithmetic");
  EXPECT_EQ(lines[1].points[1].y, 1.25);
}

}  // namespace
}  // namespace deepinfer
