#include "sched/flop_model.h"

#include <gtest/gtest.h>

#include "unit/sched/sched_test_util.h"

namespace deepinfer {
namespace {

constexpr int64_t kKi = 1024;

double PrefillGflopsPerToken(int64_t length, int64_t decoder_from) {
  return FlopModel(ReleasedShape()).PrefillRows(0, length, decoder_from) /
         static_cast<double>(length) / 1e9;
}

TEST(FlopModel, ClosedFormOfVisibleEntriesEqualsTheSum) {
  for (int64_t ratio : {1, 2, 3}) {
    for (int64_t cap : {1, 5, 100}) {
      double sum = 0;
      for (int64_t x = 0; x < 400; ++x) {
        EXPECT_EQ(VisibleEntries(x, ratio, cap), sum) << x << ' ' << ratio << ' ' << cap;
        sum += static_cast<double>(std::min(x / ratio, cap));
      }
    }
  }
}

TEST(FlopModel, PrefillWithTheDecoderTail) {
  EXPECT_NEAR(PrefillGflopsPerToken(4 * kKi, 4 * kKi - 140), 19.5, 0.1);
  EXPECT_NEAR(PrefillGflopsPerToken(64 * kKi, 64 * kKi - 140), 19.4, 0.1);
  EXPECT_NEAR(PrefillGflopsPerToken(256 * kKi, 256 * kKi - 140), 20.0, 0.1);
  EXPECT_NEAR(PrefillGflopsPerToken(1024 * kKi, 1024 * kKi - 140), 22.4, 0.1);
}

TEST(FlopModel, PrefillWithTheFullDecoder) {
  EXPECT_NEAR(PrefillGflopsPerToken(4 * kKi, 0), 37.5, 0.1);
  EXPECT_NEAR(PrefillGflopsPerToken(64 * kKi, 0), 38.4, 0.15);
  EXPECT_NEAR(PrefillGflopsPerToken(1024 * kKi, 0), 43.5, 0.15);
}

TEST(FlopModel, DecodeRowsGrowWithTheirContext) {
  const FlopModel flops(ReleasedShape());
  EXPECT_NEAR(flops.DecodeRow(4 * kKi) / 1e9, 40.7, 0.15);
  EXPECT_NEAR(flops.DecodeRow(64 * kKi) / 1e9, 41.5, 0.15);
  EXPECT_NEAR(flops.DecodeRow(1024 * kKi) / 1e9, 51.5, 0.15);
}

TEST(FlopModel, ChunksAddUpToTheWhole) {
  const FlopModel flops(ReleasedShape());
  const int64_t length = 5000, tail = 4860;
  double sum = 0, pairs = 0;
  for (int64_t start = 0; start < length; start += 333) {
    const int64_t end = std::min(length, start + 333);
    sum += flops.PrefillRows(start, end, tail);
    pairs += flops.IndexPairs(start, end, tail);
  }
  EXPECT_NEAR(sum / flops.PrefillRows(0, length, tail), 1.0, 1e-12);
  EXPECT_NEAR(pairs / flops.IndexPairs(0, length, tail), 1.0, 1e-12);
}

TEST(FlopModel, AttentionIsWhatGrowsWithTheContext) {
  const FlopModel flops(ReleasedShape());
  const auto rest = [&](int64_t position) {
    return flops.DecodeRow(position) - flops.AttentionOfDecodeRow(position);
  };
  EXPECT_DOUBLE_EQ(rest(10), rest(1024 * kKi));
  EXPECT_GT(flops.AttentionOfDecodeRow(1024 * kKi), flops.AttentionOfDecodeRow(10));
  // The first row sees itself in the window of each layer, and no compressed entry.
  const CostShape shape = ReleasedShape();
  EXPECT_DOUBLE_EQ(flops.AttentionOfPrefillRows(1, 2, 2),
                   static_cast<double>(2 * shape.heads * shape.head_dim * shape.decoder_start) * 4);
  EXPECT_EQ(flops.AttentionOfPrefillRows(5, 5, 0), 0.0);
}

TEST(FlopModel, NoRowsCostNothing) {
  EXPECT_EQ(FlopModel(ReleasedShape()).PrefillRows(128, 128, 0), 0.0);
}

}  // namespace
}  // namespace deepinfer
