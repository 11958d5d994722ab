// Linears of every level against the reference, bit for bit, and against fp64.

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/reference/weight_row.h"
#include "tensor/codecs.h"
#include "unit/kernels/kernel_test_util.h"

namespace deepinfer::test {
namespace {

constexpr int64_t kRowCounts[] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,
                                  10, 11, 12, 13, 14, 15, 16, 17, 64, 257};
constexpr int64_t kMostRows = 257;

struct Shape {
  int64_t out, in;
};

std::string Name(WeightFormat format, Shape shape) {
  return "format " + std::to_string(static_cast<int>(format)) + ", " + std::to_string(shape.out) +
         " x " + std::to_string(shape.in);
}

// The reference treats rows one by one, so its first rows are its result for fewer rows.
class LinearTest : public ::testing::Test {
 protected:
  void CheckF32(WeightFormat format, Shape shape, ScaleKind kind, int max_threads,
                int32_t groups = 1) {
    SCOPED_TRACE(Name(format, shape));
    const OwnedWeight w(format, shape.out, shape.in, 1, kind);
    const std::vector<float> x = RandomFloats(kMostRows * groups * shape.in, 2);
    std::vector<float> expected(static_cast<size_t>(kMostRows * shape.out));
    reference_->GroupedLinearF32(kMostRows, x.data(), w.matrix, groups, expected.data());
    if (kind != ScaleKind::kExtreme) ExpectMeaningful(expected);
    ForEachBackend(max_threads, [&](Operators& ops) {
      for (int64_t rows : kRowCounts) {
        std::vector<float> y(static_cast<size_t>(rows * shape.out), -1.0f);
        ops.GroupedLinearF32(rows, x.data(), w.matrix, groups, y.data());
        ASSERT_TRUE(SameBits(y.data(), expected.data(), rows * shape.out)) << rows << " rows";
      }
    });
  }

  void CheckFp8(WeightFormat format, Shape shape, ScaleKind kind, int max_threads) {
    SCOPED_TRACE(Name(format, shape));
    const OwnedWeight w(format, shape.out, shape.in, 3, kind);
    OwnedFp8Rows x(kMostRows, shape.in, 4);
    Random random(5);
    if (kind != ScaleKind::kUsual) {
      for (uint8_t& s : x.scales) s = RandomScale(kind, &random);
    }
    // Groups of zeros.
    for (size_t i = 0; i < 32; ++i) x.codes[i] = static_cast<uint8_t>(i % 2 == 0 ? 0 : 0x80);
    std::vector<float> expected(static_cast<size_t>(kMostRows * shape.out));
    for (const Rounding rounding : {Rounding::kNone, Rounding::kBf16}) {
      reference_->LinearFp8(kMostRows, x.view(), w.matrix, rounding, expected.data());
      if (kind != ScaleKind::kExtreme) ExpectMeaningful(expected);
      ForEachBackend(max_threads, [&](Operators& ops) {
        for (int64_t rows : kRowCounts) {
          std::vector<float> y(static_cast<size_t>(rows * shape.out), -1.0f);
          ops.LinearFp8(rows, x.view(), w.matrix, rounding, y.data());
          ASSERT_TRUE(SameBits(y.data(), expected.data(), rows * shape.out)) << rows << " rows";
        }
      });
    }
  }

  void CheckBf16(WeightFormat format, Shape shape, ScaleKind kind, Rounding rounding,
                 int max_threads) {
    SCOPED_TRACE(Name(format, shape));
    const OwnedWeight w(format, shape.out, shape.in, 14, kind);
    std::vector<float> x = RandomFloats(kMostRows * shape.in, 15);
    if (kind == ScaleKind::kTiny) {  // denormals and products that flush
      for (size_t i = 0; i < x.size(); i += 3) x[i] = std::ldexp(x[i], -120);
      for (size_t i = 1; i < x.size(); i += 3) x[i] = std::ldexp(x[i], -60);
    }
    RoundToBf16InPlace(&x);
    std::vector<float> expected(static_cast<size_t>(kMostRows * shape.out));
    reference_->LinearBf16(kMostRows, x.data(), w.matrix, rounding, expected.data());
    if (kind != ScaleKind::kExtreme) ExpectMeaningful(expected);
    ForEachBackend(max_threads, [&](Operators& ops) {
      for (int64_t rows : kRowCounts) {
        std::vector<float> y(static_cast<size_t>(rows * shape.out), -1.0f);
        ops.LinearBf16(rows, x.data(), w.matrix, rounding, y.data());
        ASSERT_TRUE(SameBits(y.data(), expected.data(), rows * shape.out)) << rows << " rows";
      }
    });
  }

  std::unique_ptr<Operators> reference_ = MakeReferenceOperators();
};

constexpr WeightFormat kAllFormats[] = {WeightFormat::kF32, WeightFormat::kBf16,
                                        WeightFormat::kFp8Block32, WeightFormat::kFp4Group32};
constexpr WeightFormat kDotFormats[] = {WeightFormat::kBf16, WeightFormat::kFp8Block32,
                                        WeightFormat::kFp4Group32};
// Outputs that are no multiple of a vector or panel, K that is no multiple of a segment or block.
constexpr Shape kShapes[] = {{1, 32}, {15, 96}, {33, 544}, {70, 1120}, {300, 160}, {520, 64}};

TEST_F(LinearTest, F32HasTheBitsOfTheReference) {
  for (WeightFormat format : kAllFormats) {
    for (Shape shape : kShapes) CheckF32(format, shape, ScaleKind::kUsual, 2);
  }
}

TEST_F(LinearTest, Fp8HasTheBitsOfTheReference) {
  for (WeightFormat format : kDotFormats) {
    for (Shape shape : kShapes) CheckFp8(format, shape, ScaleKind::kUsual, 2);
  }
}

TEST_F(LinearTest, Bf16HasTheBitsOfTheReference) {
  for (WeightFormat format : kDotFormats) {
    for (Shape shape : kShapes) CheckBf16(format, shape, ScaleKind::kUsual, Rounding::kBf16, 2);
  }
  // Even, but no multiple of a vector.
  for (int64_t k : {2, 6, 30, 34, 514, 530}) {
    CheckBf16(WeightFormat::kBf16, {19, k}, ScaleKind::kUsual, Rounding::kNone, 1);
  }
  CheckBf16(WeightFormat::kBf16, {130, 544}, ScaleKind::kUsual, Rounding::kNone, 4);
  CheckBf16(WeightFormat::kBf16, {37, 672}, ScaleKind::kTiny, Rounding::kNone, 1);
}

// Outputs that end inside a block of maxima, and more than one task of them.
TEST_F(LinearTest, TheHeadGivesLogitsAndTheMaximaOfTheirBlocks) {
  constexpr int64_t kRows = 9, kIn = 96;
  std::vector<float> x = RandomFloats(kRows * kIn, 18);
  RoundToBf16InPlace(&x);
  x[2 * kIn + 5] = INFINITY;  // row 2
  for (int64_t out : {1, 31, 32, 33, 70, 2085}) {
    const OwnedWeight w(WeightFormat::kBf16, out, kIn, 19);
    std::vector<float> logits(static_cast<size_t>(kRows * out));
    std::vector<float> maxima(static_cast<size_t>(kRows * NumMaxima(out)));
    reference_->Head(kRows, x.data(), w.matrix, logits.data(), maxima.data());
    for (int64_t m = 0; m < kRows; ++m) {
      for (int64_t n = 0; n < out; ++n) {
        const float most = maxima[static_cast<size_t>(m * NumMaxima(out) + n / kMaximaBlock)];
        if (m == 2) {
          ASSERT_TRUE(std::isnan(most));
        } else {
          ASSERT_GE(most, logits[static_cast<size_t>(m * out + n)]);
        }
      }
    }
    ForEachBackend(3, [&](Operators& ops) {
      for (int64_t rows : {0, 1, 3, 9}) {
        std::vector<float> y(static_cast<size_t>(rows * out), -1.0f);
        std::vector<float> most(static_cast<size_t>(rows * NumMaxima(out)), -1.0f);
        ops.Head(rows, x.data(), w.matrix, y.data(), most.data());
        ASSERT_TRUE(SameBits(y.data(), logits.data(), rows * out)) << rows << " x " << out;
        ASSERT_TRUE(SameBits(most.data(), maxima.data(), rows * NumMaxima(out)))
            << rows << " x " << out;
      }
    });
  }
}

TEST_F(LinearTest, Bf16RowsOnTheFp8GridHaveTheBitsOfFp8Rows) {
  constexpr int64_t kRows = 5, kIn = 544, kOut = 70;
  const OwnedFp8Rows x(kRows, kIn, 16);
  std::vector<float> values(kRows * kIn), fp8(kRows * kOut), bf16(kRows * kOut);
  DequantizeFp8Group32(x.codes.data(), x.scales.data(), kRows * kIn, values.data());
  for (WeightFormat format : kDotFormats) {
    const OwnedWeight w(format, kOut, kIn, 17);
    reference_->LinearFp8(kRows, x.view(), w.matrix, Rounding::kNone, fp8.data());
    ForEachBackend(1, [&](Operators& ops) {
      ops.LinearBf16(kRows, values.data(), w.matrix, Rounding::kNone, bf16.data());
      EXPECT_TRUE(SameBits(bf16, fp8));
    });
  }
}

TEST_F(LinearTest, ThreadsChangeNothing) {
  for (WeightFormat format : kAllFormats) CheckF32(format, {130, 544}, ScaleKind::kUsual, 4);
  for (WeightFormat format : kDotFormats) CheckFp8(format, {130, 544}, ScaleKind::kUsual, 4);
}

TEST_F(LinearTest, OddContractionLengths) {
  for (WeightFormat format : {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kFp8Block32}) {
    for (int64_t k : {1, 7, 31, 33, 513, 523}) CheckF32(format, {19, k}, ScaleKind::kUsual, 1);
  }
}

TEST_F(LinearTest, DenormalWeightsAndProducts) {
  for (WeightFormat format : kAllFormats) CheckF32(format, {37, 160}, ScaleKind::kTiny, 1);
  for (WeightFormat format : kDotFormats) CheckFp8(format, {37, 672}, ScaleKind::kTiny, 1);
}

// +-2^-126, the smallest normal number, less a product of a few 2^-151: whether the sum is flushed
// depends on when the flush is decided, before or after rounding.
TEST_F(LinearTest, SumsNextToTheSmallestNormalNumber) {
  constexpr int64_t kExponents = 4, kMantissas = 128, kOut = 2 * kExponents * kMantissas;
  OwnedFp8Rows x(1, 32, 20);
  std::fill(x.codes.begin(), x.codes.end(), uint8_t{0});
  x.codes[0] = 0x01;  // 2^-9 · 2^-16
  x.codes[4] = 0x78;  // 2^8 · 2^-16, and k = 4 comes before k = 0
  x.scales[0] = 127 - 16;
  OwnedWeight w(WeightFormat::kBf16, kOut, 32, 21);
  std::memset(w.data.data(), 0, kOut * 32 * 2);
  for (int64_t n = 0; n < kOut; ++n) {
    const int64_t sign = n % 2, exponent = 1 + n / 2 % kExponents, mantissa = n / 2 / kExponents;
    const uint16_t second = static_cast<uint16_t>((1 - sign) << 15 | exponent << 7 | mantissa);
    const uint16_t first = static_cast<uint16_t>(sign << 15 | (127 - 118) << 7);
    std::memcpy(w.data.data() + n * 64, &second, 2);
    std::memcpy(w.data.data() + n * 64 + 8, &first, 2);
  }
  std::vector<float> expected(kOut), y(kOut);
  reference_->LinearFp8(1, x.view(), w.matrix, Rounding::kNone, expected.data());
  const auto flushed = std::count(expected.begin(), expected.end(), 0.0f);
  EXPECT_GT(flushed, 0);
  EXPECT_LT(flushed, kOut);
  ForEachBackend(1, [&](Operators& ops) {
    ops.LinearFp8(1, x.view(), w.matrix, Rounding::kNone, y.data());
    EXPECT_TRUE(SameBits(y, expected));
  });
}

TEST_F(LinearTest, ScalesAtTheEndsOfTheirRange) {
  for (WeightFormat format : {WeightFormat::kFp8Block32, WeightFormat::kFp4Group32}) {
    CheckF32(format, {37, 160}, ScaleKind::kExtreme, 1);
    CheckFp8(format, {37, 672}, ScaleKind::kExtreme, 1);
  }
}

// A row with a NaN or with values out of the moderate range leaves its neighbours alone.
TEST_F(LinearTest, ExtremeRowsBesideUsualOnes) {
  for (WeightFormat format : kDotFormats) {
    const OwnedWeight w(format, 70, 544, 30);
    for (int64_t rows : {3, 20}) {
      OwnedFp8Rows x(rows, 544, 31);
      x.scales[17 + 2] = 255;              // row 1
      x.scales[2 * 17] = 20;               // row 2
      x.codes[5] = rows == 20 ? 0x7F : 0;  // row 0
      if (rows == 20) x.scales[11 * 17 + 16] = 200;
      std::vector<float> expected(static_cast<size_t>(rows * 70)), y(expected.size());
      reference_->LinearFp8(rows, x.view(), w.matrix, Rounding::kNone, expected.data());
      EXPECT_EQ(std::count_if(expected.begin(), expected.end(), [](float v) { return v != v; }),
                rows == 20 ? 140 : 70);
      ForEachBackend(2, [&](Operators& ops) {
        ops.LinearFp8(rows, x.view(), w.matrix, Rounding::kNone, y.data());
        EXPECT_TRUE(SameBits(y, expected)) << "format " << static_cast<int>(format);
      });
    }
  }
}

// One output with a NaN or an extreme scale among usual ones, in every place of a panel.
TEST_F(LinearTest, ExtremeOutputsBesideUsualOnes) {
  constexpr int64_t kOut = 40, kIn = 416;
  for (int64_t rows : {1, 12}) {
    const OwnedFp8Rows x(rows, kIn, 32);
    for (int64_t n = 0; n < kOut; n += 3) {
      OwnedWeight fp8(WeightFormat::kFp8Block32, kOut, kIn, 33);
      fp8.data.data()[n * kIn + 7 * n] = n % 2 == 0 ? 0x7F : 0xFF;
      OwnedWeight fp4(WeightFormat::kFp4Group32, kOut, kIn, 34);
      fp4.scales[static_cast<size_t>(n * (kIn / 32) + n % 13)] = n % 2 == 0 ? 255 : 30;
      for (const OwnedWeight* w : {&fp8, &fp4}) {
        std::vector<float> expected(static_cast<size_t>(rows * kOut)), y(expected.size());
        reference_->LinearFp8(rows, x.view(), w->matrix, Rounding::kNone, expected.data());
        ForEachBackend(1, [&](Operators& ops) {
          ops.LinearFp8(rows, x.view(), w->matrix, Rounding::kNone, y.data());
          EXPECT_TRUE(SameBits(y, expected)) << "output " << n;
        });
      }
    }
  }
}

// FP8, FP4 and bf16 weights of equal values give equal bits.
TEST_F(LinearTest, StoredFormsOfEqualValuesGiveEqualBits) {
  constexpr int64_t kOut = 64, kIn = 288, kRows = 12;
  OwnedWeight fp4(WeightFormat::kFp4Group32, kOut, kIn, 40);
  OwnedWeight fp8(WeightFormat::kFp8Block32, kOut, kIn, 41);
  OwnedWeight bf16(WeightFormat::kBf16, kOut, kIn, 42);
  std::fill(fp4.scales.begin(), fp4.scales.end(), uint8_t{122});
  std::fill(fp8.scales.begin(), fp8.scales.end(), uint8_t{122});
  std::vector<float> row(kIn);
  for (int64_t n = 0; n < kOut; ++n) {
    UnpackWeightRow(fp4.matrix, n, row.data());
    for (int64_t i = 0; i < kIn; ++i) {
      const float value = row[static_cast<size_t>(i)];
      fp8.data.data()[n * kIn + i] = FloatToE4m3(value * 0x1p5f);
      const uint16_t half = FloatToBf16(value);
      std::memcpy(bf16.data.data() + 2 * (n * kIn + i), &half, 2);
    }
  }
  const OwnedFp8Rows x(kRows, kIn, 43);
  std::vector<float> expected(kRows * kOut), y(expected.size());
  reference_->LinearFp8(kRows, x.view(), fp4.matrix, Rounding::kNone, expected.data());
  ExpectMeaningful(expected);
  ForEachBackend(1, [&](Operators& ops) {
    for (const OwnedWeight* w : {&fp4, &fp8, &bf16}) {
      for (int64_t rows : {int64_t{1}, kRows}) {
        ops.LinearFp8(rows, x.view(), w->matrix, Rounding::kNone, y.data());
        EXPECT_TRUE(SameBits(y.data(), expected.data(), rows * kOut));
      }
    }
  });
}

TEST_F(LinearTest, EveryScaleByteAndCode) {
  // All weights of an output are one code, all activations 1: an infinity or NaN is not hidden by
  // its neighbours. The scale bytes come in runs as long as a block of outputs.
  for (WeightFormat format : {WeightFormat::kFp8Block32, WeightFormat::kFp4Group32}) {
    const bool fp8 = format == WeightFormat::kFp8Block32;
    const int64_t codes = fp8 ? 256 : 16, out = 256 * codes, row_bytes = fp8 ? 32 : 16;
    OwnedWeight w(format, out, 32, 6, ScaleKind::kExtreme);
    for (int64_t n = 0; n < out; ++n) {
      const int64_t code = n % codes;
      std::memset(w.data.data() + n * row_bytes, static_cast<int>(fp8 ? code : code * 0x11),
                  row_bytes);
      w.scales[static_cast<size_t>(fp8 ? n / 32 : n)] = static_cast<uint8_t>(n / codes);
    }
    OwnedFp8Rows x(1, 32, 7);
    std::fill(x.codes.begin(), x.codes.end(), uint8_t{0x38});
    x.scales[0] = 127;
    const std::vector<float> ones(32, 1.0f);
    std::vector<float> dot(static_cast<size_t>(out)), fma(dot.size()), y(dot.size());
    reference_->LinearFp8(1, x.view(), w.matrix, Rounding::kNone, dot.data());
    reference_->LinearF32(1, ones.data(), w.matrix, fma.data());
    ForEachBackend(1, [&](Operators& ops) {
      ops.LinearFp8(1, x.view(), w.matrix, Rounding::kNone, y.data());
      EXPECT_TRUE(SameBits(y, dot));
      ops.LinearF32(1, ones.data(), w.matrix, y.data());
      EXPECT_TRUE(SameBits(y, fma));
    });
  }
}

// From no to eight of the eight values of a lane are the largest: sums of products pass 2^24 units.
TEST_F(LinearTest, LanesOfLargeValues) {
  constexpr int64_t kOut = 64, kIn = 384, kRows = 3;
  const OwnedWeight w(WeightFormat::kFp4Group32, kOut, kIn, 41, ScaleKind::kUsual);
  for (int num_large = 0; num_large <= 8; ++num_large) {
    OwnedFp8Rows x(kRows, kIn, 42);
    Random random(43);
    for (size_t i = 0; i < x.codes.size(); ++i) {
      const bool is_large = static_cast<int>(i % 8) < num_large;
      const auto sign = static_cast<uint8_t>(random.Below(4) == 0 ? 0x80 : 0);
      x.codes[i] = static_cast<uint8_t>((is_large ? 0x7E : random.Below(16)) | sign);
    }
    std::vector<float> expected(static_cast<size_t>(kRows * kOut)), y(expected.size());
    reference_->LinearFp8(kRows, x.view(), w.matrix, Rounding::kNone, expected.data());
    ForEachBackend(1, [&](Operators& ops) {
      for (int64_t rows = 1; rows <= kRows; ++rows) {
        ops.LinearFp8(rows, x.view(), w.matrix, Rounding::kNone, y.data());
        ASSERT_TRUE(SameBits(y.data(), expected.data(), rows * kOut))
            << num_large << " of 8 values, " << rows << " rows";
      }
    });
  }
}

TEST_F(LinearTest, GroupsReadTheirOwnColumns) {
  for (WeightFormat format : kAllFormats) {
    // 24 outputs a group: 16 outputs then straddle two scale blocks.
    CheckF32(format, {3 * 24, 544}, ScaleKind::kUsual, 2, 3);
    CheckF32(format, {2 * 64, 96}, ScaleKind::kUsual, 2, 2);
  }
}

TEST_F(LinearTest, Fp8GroupsReadTheirOwnColumns) {
  constexpr int64_t kRows = 17;
  for (WeightFormat format : kDotFormats) {
    for (const auto& shape : {std::array<int32_t, 3>{3, 24, 544}, {2, 64, 96}}) {
      const int32_t groups = shape[0], outputs = shape[1], in = shape[2];
      const OwnedWeight w(format, groups * outputs, in, 18);
      const OwnedFp8Rows x(kRows, groups * in, 19);
      std::vector<float> expected(static_cast<size_t>(kRows * groups * outputs));
      reference_->GroupedLinearFp8(kRows, x.view(), w.matrix, groups, expected.data());
      ExpectMeaningful(expected);
      ForEachBackend(2, [&](Operators& ops) {
        for (int64_t rows : {0, 1, 2, 5, 17}) {
          std::vector<float> y(static_cast<size_t>(rows * groups * outputs), -1.0f);
          ops.GroupedLinearFp8(rows, x.view(), w.matrix, groups, y.data());
          ASSERT_TRUE(SameBits(y.data(), expected.data(), rows * groups * outputs));
        }
      });
    }
  }
}

TEST_F(LinearTest, SeveralWeightsOverTheSameRows) {
  constexpr int64_t kRows = 17, kIn = 544;
  const OwnedFp8Rows x(kRows, kIn, 20);
  std::vector<OwnedWeight> weights;
  std::vector<std::vector<float>> expected;
  // Stored forms in turns: rows for codes, for bf16, and for codes again; one weight has no output.
  for (const auto& [format, outputs] : {std::pair{WeightFormat::kFp8Block32, 96},
                                        {WeightFormat::kFp8Block32, 0},
                                        {WeightFormat::kFp4Group32, 40},
                                        {WeightFormat::kBf16, 56},
                                        {WeightFormat::kFp8Block32, 1024}}) {
    weights.emplace_back(format, outputs, kIn, static_cast<uint32_t>(21 + weights.size()));
    expected.emplace_back(static_cast<size_t>(kRows * outputs));
    reference_->LinearFp8(kRows, x.view(), weights.back().matrix, Rounding::kBf16,
                          expected.back().data());
  }
  ForEachBackend(3, [&](Operators& ops) {
    for (int64_t rows : {0, 1, 2, 5, 17}) {
      std::vector<std::vector<float>> y = expected;
      std::vector<LinearOutput> outputs;
      for (size_t i = 0; i < weights.size(); ++i) {
        std::fill(y[i].begin(), y[i].end(), -1.0f);
        outputs.push_back({&weights[i].matrix, y[i].data()});
      }
      ops.LinearFp8(rows, x.view(), outputs, Rounding::kBf16);
      for (size_t i = 0; i < weights.size(); ++i) {
        const int64_t count = rows * weights[i].matrix.out_features;
        ASSERT_TRUE(SameBits(y[i].data(), expected[i].data(), count)) << "weight " << i;
        ASSERT_TRUE(std::all_of(y[i].begin() + count, y[i].end(), [](float v) { return v == -1; }))
            << "weight " << i << ": wrote behind its rows";
      }
    }
  });
}

TEST_F(LinearTest, PlaceInTheBatchChangesNothing) {
  const OwnedWeight w(WeightFormat::kFp8Block32, 70, 544, 8);
  const OwnedFp8Rows one(1, 544, 9);
  std::vector<float> expected(70);
  reference_->LinearFp8(1, one.view(), w.matrix, Rounding::kNone, expected.data());
  ForEachBackend(2, [&](Operators& ops) {
    for (int64_t place = 0; place < 19; ++place) {
      OwnedFp8Rows batch(19, 544, 10);
      std::copy(one.codes.begin(), one.codes.end(), batch.codes.begin() + place * 544);
      std::copy(one.scales.begin(), one.scales.end(), batch.scales.begin() + place * 17);
      std::vector<float> y(19 * 70);
      ops.LinearFp8(19, batch.view(), w.matrix, Rounding::kNone, y.data());
      ASSERT_TRUE(SameBits(y.data() + place * 70, expected.data(), 70)) << "place " << place;
    }
  });
}

TEST_F(LinearTest, StaysWithinTheRoundingBoundOfFp64) {
  constexpr int64_t kRows = 3, kIn = 1120, kOut = 37;
  const OwnedFp8Rows x(kRows, kIn, 11);
  std::vector<float> values(kRows * kIn), row(kIn), y(kRows * kOut);
  DequantizeFp8Group32(x.codes.data(), x.scales.data(), kRows * kIn, values.data());
  for (WeightFormat format : kDotFormats) {
    const OwnedWeight w(format, kOut, kIn, 12);
    for (bool dot : {false, true}) {
      ForEachBackend(1, [&](Operators& ops) {
        if (dot) {
          ops.LinearFp8(kRows, x.view(), w.matrix, Rounding::kNone, y.data());
        } else {
          ops.LinearF32(kRows, values.data(), w.matrix, y.data());
        }
        for (int64_t n = 0; n < kOut; ++n) {
          UnpackWeightRow(w.matrix, n, row.data());
          for (int64_t m = 0; m < kRows; ++m) {
            double sum = 0.0, magnitude = 0.0;
            for (int64_t i = 0; i < kIn; ++i) {
              const double product = double{row[static_cast<size_t>(i)]} *
                                     double{values[static_cast<size_t>(m * kIn + i)]};
              sum += product;
              magnitude += std::fabs(product);
            }
            ASSERT_NEAR(y[static_cast<size_t>(m * kOut + n)], sum, 2.0 * kIn * 0x1p-24 * magnitude);
          }
        }
      });
    }
  }
}

TEST_F(LinearTest, QuantizerHasTheBytesOfTheReference) {
  for (int64_t k : {32, 96, 544, 5120}) {
    for (int64_t rows : {0, 1, 3, 17}) {
      std::vector<float> x = RandomFloats(rows * k, 13);
      if (rows > 0) {
        std::fill(x.begin(), x.begin() + 32, 0.0f);
        x.back() = rows == 3 ? INFINITY : 1e30f;
      }
      const size_t codes = static_cast<size_t>(rows * k);
      std::vector<uint8_t> expected(codes + codes / 32), actual(codes + codes / 32);
      reference_->QuantizeFp8(rows, x.data(), k, {expected.data(), expected.data() + codes});
      ForEachBackend(3, [&](Operators& ops) {
        ops.QuantizeFp8(rows, x.data(), k, {actual.data(), actual.data() + codes});
        ASSERT_EQ(actual, expected);
      });
    }
  }
}

// Zeros, subnormal codes, ties between codes and the largest numbers.
TEST_F(LinearTest, QuantizerRoundsLikeTheReferenceEverywhere) {
  constexpr int64_t kWidth = 32, kRows = 4096;
  Random random(29);
  std::vector<float> x;
  for (int64_t row = 0; row < kRows; ++row) {
    const int largest = static_cast<int>(random.Below(250)) - 124;
    for (int64_t i = 0; i < kWidth; ++i) {
      // Five bits are all a tie needs.
      const int64_t steps = random.Below(2) == 0 ? 32 : 1 << 20;
      const float mantissa =
          1.0f + static_cast<float>(random.Below(steps)) / static_cast<float>(steps);
      const float value = std::ldexp(mantissa, largest - static_cast<int>(random.Below(20)));
      x.push_back(random.Below(2) == 0 ? value : -value);
      if (random.Below(16) == 0) x.back() = random.Below(2) == 0 ? 0.0f : -0.0f;
    }
    if (row % 512 == 0) x.back() = row % 1024 == 0 ? NAN : -INFINITY;
  }
  const size_t codes = x.size();
  std::vector<uint8_t> expected(codes + codes / 32), actual(codes + codes / 32);
  reference_->QuantizeFp8(kRows, x.data(), kWidth, {expected.data(), expected.data() + codes});
  ForEachBackend(1, [&](Operators& ops) {
    ops.QuantizeFp8(kRows, x.data(), kWidth, {actual.data(), actual.data() + codes});
    ASSERT_EQ(actual, expected);
  });
}

}  // namespace
}  // namespace deepinfer::test
