// The chart of how costs grow with the context.

#include "cli/bench_growth.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

TEST(Growth, IsRelativeToTheFewestTokensOfItsSeries) {
  const std::vector<GrowthSample> samples = {{"decode batch 1", "decode", 4096, 30, 250},
                                             {"prefill", "prefill", 128, 5, 7},
                                             {"decode batch 1", "decode", 512, 20, 200},
                                             {"decode batch 8", "decode", 512, 50, 200},
                                             {"decode batch 8", "decode", 4096, 60, 250}};
  const std::vector<ChartSeries> lines = GrowthSeries(samples);
  // The prefill has one point, which says nothing of growth.
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0].name, "decode batch 1");
  EXPECT_EQ(lines[1].name, "decode batch 8");
  EXPECT_EQ(lines[2].name, "decode, arithmetic");
  const double growth[] = {1.5, 1.2, 1.25};
  for (size_t i = 0; i < lines.size(); ++i) {
    ASSERT_EQ(lines[i].points.size(), 2u);
    EXPECT_EQ(lines[i].points[0].x, 512);
    EXPECT_EQ(lines[i].points[0].y, 1);
    EXPECT_EQ(lines[i].points[1].x, 4096);
    EXPECT_EQ(lines[i].points[1].y, growth[i]);
  }
}

}  // namespace
}  // namespace deepinfer
