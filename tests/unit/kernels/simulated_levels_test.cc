// The AVX-512 linears on models of their instructions against the reference, bit for bit, on CPUs
// that lack them.

#include "unit/kernels/simulated_levels.h"

#include <algorithm>

namespace deepinfer::test {
namespace {

class SimulatedLevelTest : public ::testing::TestWithParam<IsaLevel> {
 protected:
  void Check(WeightFormat format, int64_t out, int64_t in, ScaleKind kind,
             const std::vector<int64_t>& row_counts) {
    SCOPED_TRACE("format " + std::to_string(static_cast<int>(format)) + ", " + std::to_string(out) +
                 " x " + std::to_string(in));
    const int64_t most_rows = *std::max_element(row_counts.begin(), row_counts.end());
    const OwnedWeight w(format, out, in, 1, kind);
    OwnedFp8Rows x(most_rows, in, 2);
    Random random(3);
    if (kind != ScaleKind::kUsual) {
      for (uint8_t& scale : x.scales) scale = RandomScale(kind, &random);
    }
    std::vector<float> expected(static_cast<size_t>(most_rows * out)), y(expected.size());
    reference_->LinearFp8(most_rows, x.view(), w.matrix, Rounding::kNone, expected.data());
    if (kind != ScaleKind::kExtreme) ExpectMeaningful(expected);
    for (int64_t rows : row_counts) {
      ops_.LinearFp8(rows, x.view(), w.matrix, Rounding::kNone, y.data());
      ASSERT_TRUE(SameBits(y.data(), expected.data(), rows * out)) << rows << " rows";
    }
  }

  std::unique_ptr<Operators> reference_ = MakeReferenceOperators();
  ThreadPool pool_{1};
  CpuKernels kernels_ = SimulatedKernels(GetParam());
  CpuOperators ops_{kernels_, &pool_};
};

constexpr WeightFormat kDotFormats[] = {WeightFormat::kBf16, WeightFormat::kFp8Block32,
                                        WeightFormat::kFp4Group32};

TEST_P(SimulatedLevelTest, EveryNumberOfRows) {
  for (WeightFormat format : kDotFormats) {
    Check(format, 21, 288, ScaleKind::kUsual,
          {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 20});
  }
}

TEST_P(SimulatedLevelTest, EveryLengthOfTheLastBlock) {
  for (WeightFormat format : kDotFormats) {
    for (int64_t in : {32, 64, 96, 128, 672}) {
      Check(format, 37, in, ScaleKind::kUsual, {1, 5, 13});
    }
  }
}

TEST_P(SimulatedLevelTest, ScalesAtTheEndsOfTheirRange) {
  for (WeightFormat format : kDotFormats) {
    for (ScaleKind kind : {ScaleKind::kTiny, ScaleKind::kExtreme}) {
      Check(format, 37, 416, kind, {1, 3, 13});
    }
  }
}

TEST_P(SimulatedLevelTest, NanCodesAndExtremeScalesBesideUsualOnes) {
  constexpr int64_t kOut = 20, kIn = 160, kRows = 11;
  const OwnedFp8Rows x(kRows, kIn, 4);
  std::vector<float> expected(kRows * kOut), y(expected.size());
  for (int64_t n = 0; n < kOut; ++n) {
    OwnedWeight fp8(WeightFormat::kFp8Block32, kOut, kIn, 5);
    fp8.data.data()[n * kIn + 7 * n] = n % 2 == 0 ? 0x7F : 0xFF;
    OwnedWeight fp4(WeightFormat::kFp4Group32, kOut, kIn, 6);
    fp4.scales[static_cast<size_t>(n * 5 + n % 5)] = n % 2 == 0 ? 255 : 30;
    for (const OwnedWeight* w : {&fp8, &fp4}) {
      reference_->LinearFp8(kRows, x.view(), w->matrix, Rounding::kNone, expected.data());
      for (int64_t rows : {int64_t{2}, kRows}) {
        ops_.LinearFp8(rows, x.view(), w->matrix, Rounding::kNone, y.data());
        ASSERT_TRUE(SameBits(y.data(), expected.data(), rows * kOut)) << "output " << n;
      }
    }
  }
}

TEST_P(SimulatedLevelTest, F32Rows) {
  constexpr int64_t kRows = 9, kOut = 37, kIn = 160;
  const std::vector<float> x = RandomFloats(kRows * kIn, 7);
  std::vector<float> expected(kRows * kOut), y(expected.size());
  for (WeightFormat format : {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kFp8Block32,
                              WeightFormat::kFp4Group32}) {
    const OwnedWeight w(format, kOut, kIn, 8);
    reference_->LinearF32(kRows, x.data(), w.matrix, expected.data());
    ExpectMeaningful(expected);
    for (int64_t rows : {int64_t{1}, kRows}) {
      ops_.LinearF32(rows, x.data(), w.matrix, y.data());
      EXPECT_TRUE(SameBits(y.data(), expected.data(), rows * kOut));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, SimulatedLevelTest,
                         ::testing::Values(IsaLevel::kAvx512, IsaLevel::kAvx512Bf16),
                         [](const auto& level) { return std::string(IsaLevelName(level.param)); });

}  // namespace
}  // namespace deepinfer::test
