// Linears in every stored format against fp64 (error bound of numerics.md §7), the order of
// accumulation, empty calls and the finite check.

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "kernels/backends.h"
#include "kernels/reference/weight_row.h"
#include "unit/kernels/kernel_test_data.h"

namespace deepinfer {
namespace {

// A random matrix in any stored form.
struct StoredMatrix {
  StoredMatrix(WeightFormat format, int64_t out, int64_t in, uint32_t seed) {
    std::mt19937 rng(seed);
    const auto code = [&] {
      const auto byte = static_cast<uint8_t>(rng());
      return (byte & 0x7F) == kE4m3Nan ? uint8_t{0} : byte;
    };
    matrix.format = format;
    matrix.out_features = out;
    matrix.in_features = in;
    int64_t num_scales = 0;
    switch (format) {
      case WeightFormat::kF32:
        floats = RandomFloats(static_cast<size_t>(out * in), seed);
        matrix.data = floats.data();
        return;
      case WeightFormat::kBf16:
        halves = RandomBf16(static_cast<size_t>(out * in), seed);
        matrix.data = halves.data();
        return;
      case WeightFormat::kFp8Block32:
        bytes.resize(static_cast<size_t>(out * in));
        num_scales = (out + 31) / 32 * ((in + 31) / 32);
        break;
      case WeightFormat::kFp8Group32:
        bytes.resize(static_cast<size_t>(out * in));
        num_scales = out * (in / 32);
        break;
      case WeightFormat::kFp4Group32:
        bytes.resize(static_cast<size_t>(out * in / 2));
        num_scales = out * (in / 32);
        break;
    }
    for (uint8_t& b : bytes)
      b = format == WeightFormat::kFp4Group32 ? static_cast<uint8_t>(rng()) : code();
    for (int64_t i = 0; i < num_scales; ++i) {
      scales.push_back(static_cast<uint8_t>(120 + rng() % 8));
    }
    matrix.data = bytes.data();
    matrix.scales = scales.data();
  }
  StoredMatrix(const StoredMatrix&) = delete;
  StoredMatrix& operator=(const StoredMatrix&) = delete;

  // W[row, col], decoded here in the words of the format.
  double At(int64_t row, int64_t col) const {
    const int64_t in = matrix.in_features;
    const size_t at = static_cast<size_t>(row * in + col);
    const auto scale = [&](int64_t index) {
      return std::exp2(scales[static_cast<size_t>(index)] - 127.0);
    };
    switch (matrix.format) {
      case WeightFormat::kF32:
        return floats[at];
      case WeightFormat::kBf16:
        return Bf16ToFloat(halves[at]);
      case WeightFormat::kFp8Block32:
        return E4m3ToFloat(bytes[at]) * scale(row / 32 * ((in + 31) / 32) + col / 32);
      case WeightFormat::kFp8Group32:
        return E4m3ToFloat(bytes[at]) * scale(row * (in / 32) + col / 32);
      case WeightFormat::kFp4Group32:
        return E2m1ToFloat(static_cast<uint8_t>(bytes[at / 2] >> (col % 2 == 0 ? 0 : 4))) *
               scale(row * (in / 32) + col / 32);
    }
    return NAN;
  }

  WeightMatrix matrix;
  std::vector<float> floats;
  std::vector<uint16_t> halves;
  std::vector<uint8_t> bytes, scales;
};

void ExpectClose(const StoredMatrix& w, const std::vector<double>& x, const std::vector<float>& y,
                 int64_t rows, int32_t groups = 1) {
  const int64_t out = w.matrix.out_features, in = w.matrix.in_features;
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t n = 0; n < out; ++n) {
      const int64_t base = t * groups * in + n / (out / groups) * in;
      double want = 0, magnitude = 0;
      for (int64_t k = 0; k < in; ++k) {
        const double product = w.At(n, k) * x[static_cast<size_t>(base + k)];
        want += product;
        magnitude += std::fabs(product);
      }
      const double bound = 2.0 * static_cast<double>(in) * 0x1p-24 * magnitude;
      ASSERT_NEAR(y[static_cast<size_t>(t * out + n)], want, bound) << "row " << t << " out " << n;
    }
  }
}

TEST(ReferenceLinear, EveryFormatStaysInsideTheErrorBound) {
  const auto ops = MakeReferenceOperators();
  for (const WeightFormat format :
       {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kFp8Block32,
        WeightFormat::kFp8Group32, WeightFormat::kFp4Group32}) {
    for (const int64_t in : {32, 512, 544, 1056}) {
      const StoredMatrix w(format, 35, in, 81);
      const std::vector<float> x = RandomFloats(static_cast<size_t>(3 * in), 82);
      std::vector<float> y(3 * 35, NAN);
      ops->LinearF32(3, x.data(), w.matrix, y.data());
      ExpectClose(w, {x.begin(), x.end()}, y, 3);
    }
  }
}

TEST(ReferenceLinear, GroupsReadTheirOwnColumns) {
  const auto ops = MakeReferenceOperators();
  const StoredMatrix w(WeightFormat::kFp8Block32, 4 * 48, 96, 83);
  const std::vector<float> x = RandomFloats(2 * 4 * 96, 84);
  std::vector<float> y(2 * 4 * 48, NAN);
  ops->GroupedLinearF32(2, x.data(), w.matrix, 4, y.data());
  ExpectClose(w, {x.begin(), x.end()}, y, 2, 4);
}

TEST(ReferenceLinear, QuantisedRowsStayInsideTheErrorBound) {
  const auto ops = MakeReferenceOperators();
  for (const WeightFormat format :
       {WeightFormat::kBf16, WeightFormat::kFp8Block32, WeightFormat::kFp4Group32}) {
    const StoredMatrix w(format, 33, 1056, 85);
    const std::vector<float> x = RandomFloats(2 * 1056, 86);
    std::vector<uint8_t> codes(x.size()), scales(x.size() / 32);
    ops->QuantizeFp8(2, x.data(), 1056, {codes.data(), scales.data()});
    std::vector<double> qdq;
    for (size_t i = 0; i < x.size(); ++i) {
      qdq.push_back(double{E4m3ToFloat(codes[i])} * E8m0ToFloat(scales[i / 32]));
    }
    std::vector<float> y(2 * 33, NAN);
    ops->LinearFp8(2, {codes.data(), scales.data()}, w.matrix, Rounding::kNone, y.data());
    ExpectClose(w, qdq, y, 2);
  }
}

// 2^24 followed by ones: inside a segment each one is lost, across segments their sum is not.
TEST(ReferenceLinear, SegmentsOf512AreSummedApart) {
  const auto ops = MakeReferenceOperators();
  std::vector<float> w(1024, 1.0f), x(1024, 1.0f);
  x[0] = 0x1p24f;
  float y = 0;
  ops->LinearF32(1, x.data(), {WeightFormat::kF32, 1, 1024, w.data(), nullptr}, &y);
  EXPECT_EQ(y, 0x1p24f + 512.0f);
  ops->LinearF32(1, x.data(), {WeightFormat::kF32, 1, 512, w.data(), nullptr}, &y);
  EXPECT_EQ(y, 0x1p24f);
}

// y of a bf16 row against ones.
float DotWithOnes(const std::vector<float>& values) {
  std::vector<uint16_t> w;
  for (float v : values) w.push_back(FloatToBf16(v));
  const int64_t k = static_cast<int64_t>(values.size());
  const std::vector<uint8_t> codes(values.size(), FloatToE4m3(1.0f));
  const std::vector<uint8_t> scales(values.size() / 32, 127);
  float y = NAN;
  MakeReferenceOperators()->LinearFp8(1, {codes.data(), scales.data()},
                                      {WeightFormat::kBf16, 1, k, w.data(), nullptr},
                                      Rounding::kNone, &y);
  return y;
}

// Beside 2^24 only even sums last: of the eight k of its lane, taken in the order 4, 0, 5, 1, 6, 2,
// 7, 3, those that come before it count together and those behind it one by one.
TEST(ReferenceLinear, PairsOfABlockAreSummedLaneByLane) {
  const std::map<size_t, float> kept_of_eight = {{0, 0.0f}, {7, 8.0f}, {8, 0.0f}, {130, 4.0f}};
  for (const auto& [big, kept] : kept_of_eight) {
    std::vector<float> values(256, 1.0f);
    values[big] = 0x1p24f;
    EXPECT_EQ(DotWithOnes(values), 0x1p24f + 248.0f + kept) << big;
  }
}

TEST(ReferenceLinear, TheHigherElementOfAPairComesFirst) {
  std::vector<float> values(32, 0.0f);
  values[4] = 0x1p24f;
  values[5] = 1.0f;
  values[1] = -0x1p24f;
  EXPECT_EQ(DotWithOnes(values), 0.0f);
  std::swap(values[5], values[1]);
  EXPECT_EQ(DotWithOnes(values), 1.0f);
}

// The bf16dot family flushes denormal products and results; fp32 sums keep them.
TEST(ReferenceLinear, OnlyThePairFamilyFlushesDenormals) {
  const auto ops = MakeReferenceOperators();
  std::vector<uint16_t> w(32, 0);
  w[0] = FloatToBf16(0x1p-120f);
  const WeightMatrix matrix{WeightFormat::kBf16, 1, 32, w.data(), nullptr};
  std::vector<uint8_t> codes(32, 0);
  codes[0] = FloatToE4m3(1.0f);
  const uint8_t scale = 127 - 20;  // x[0] = 2^-20
  float y = -1;
  ops->LinearFp8(1, {codes.data(), &scale}, matrix, Rounding::kNone, &y);
  EXPECT_EQ(y, 0.0f);
  std::vector<float> x(32, 0.0f);
  x[0] = 0x1p-20f;
  ops->LinearF32(1, x.data(), matrix, &y);
  EXPECT_EQ(y, 0x1p-140f);
}

TEST(ReferenceLinear, RowsDoNotDependOnTheirBatch) {
  const auto ops = MakeReferenceOperators();
  const StoredMatrix w(WeightFormat::kFp8Block32, 40, 544, 87);
  const std::vector<float> x = RandomFloats(17 * 544, 88);
  std::vector<float> all(17 * 40), one(40);
  ops->LinearF32(17, x.data(), w.matrix, all.data());
  for (size_t t = 0; t < 17; ++t) {
    ops->LinearF32(1, x.data() + t * 544, w.matrix, one.data());
    EXPECT_TRUE(
        std::equal(one.begin(), one.end(), all.begin() + static_cast<std::ptrdiff_t>(t * 40)))
        << t;
  }
}

TEST(ReferenceFinite, FindsEveryKindOfNonFiniteValueAnywhere) {
  const auto ops = MakeReferenceOperators();
  std::vector<float> x = RandomFloats(67, 91, 1e38f);
  for (float& v : x) v = std::min(std::max(v, -3.4e38f), 3.4e38f);
  EXPECT_TRUE(ops->AllFinite(67, x.data()));
  EXPECT_TRUE(ops->AllFinite(0, nullptr));
  for (const float bad : {NAN, -NAN, INFINITY, -INFINITY}) {
    for (size_t i = 0; i < x.size(); ++i) {
      std::vector<float> y = x;
      y[i] = bad;
      EXPECT_FALSE(ops->AllFinite(67, y.data())) << bad << " at " << i;
    }
  }
}

// No row: no pointer may be read or written.
TEST(ReferenceOperatorsTest, NoRowsTouchNothing) {
  const auto ops = MakeReferenceOperators();
  const WeightMatrix w{WeightFormat::kBf16, 32, 32, nullptr, nullptr};
  HcShape hc;
  hc.dim = 32;
  ops->Embed(0, nullptr, nullptr, 32, nullptr);
  ops->Replicate(0, nullptr, 4, 32, nullptr);
  ops->RmsNorm(0, nullptr, nullptr, 32, 1e-20f, Rounding::kBf16, nullptr);
  ops->HcMixes(0, nullptr, {}, hc, nullptr, nullptr, nullptr);
  ops->HcPre(0, nullptr, nullptr, hc, Rounding::kBf16, nullptr);
  ops->HcPost(0, nullptr, nullptr, nullptr, nullptr, hc, Rounding::kBf16, nullptr);
  ops->HcMean(0, nullptr, hc, Rounding::kBf16, nullptr, 32);
  ops->QuantizeFp8(0, nullptr, 32, {});
  ops->Rope(0, nullptr, 1, 32, nullptr, {nullptr, nullptr, 16, 1}, false, Rounding::kBf16);
  ops->StoreWindowRows(0, nullptr, 32, KvFormat::kQuantized, nullptr);
  ops->WriteRing(0, nullptr, 33, 0, 4, nullptr);
  ops->Attention({}, nullptr, nullptr, {KvFormat::kQuantized, 1, 32, 1.0f}, nullptr);
  ops->CompressPair(0, nullptr, nullptr, nullptr, nullptr, 32, 32, Rounding::kBf16, nullptr);
  ops->StoreCompressed(0, nullptr, 32, KvFormat::kQuantized, true, 0, {});
  ops->StoreIndexKeys(0, nullptr, 32, KvFormat::kQuantized, 0, {});
  ops->QdqFp4Group32(0, nullptr, 32);
  ops->IndexScores({}, nullptr, nullptr, {}, 4, nullptr);
  ops->SelectCandidates({}, nullptr, 4, {}, nullptr, nullptr);
  ops->SelectTopK({}, nullptr, 4, {}, nullptr, nullptr);
  ops->Route(0, nullptr, nullptr, nullptr, nullptr, 8, 2, 1.0f, 1.0f, nullptr, nullptr);
  ops->EngramGather(0, nullptr, 6, w, nullptr);
  ops->EngramGatherFp8(0, nullptr, 6, w, {});
  ops->EngramGate(0, nullptr, nullptr, nullptr, nullptr, nullptr, hc, Rounding::kBf16);
  ops->Scale(0, 2.0f, nullptr);
  ops->CopyOnDevice(nullptr, nullptr, 0);
  ops->CopyToDevice(nullptr, nullptr, 0);
  ops->CopyToHost(nullptr, nullptr, 0);

  // Weights are still unpacked, so these need them.
  const StoredMatrix stored(WeightFormat::kFp8Block32, 32, 32, 92);
  const ExpertWeights expert{stored.matrix, stored.matrix, stored.matrix};
  ops->LinearF32(0, nullptr, stored.matrix, nullptr);
  ops->GroupedLinearF32(0, nullptr, stored.matrix, 2, nullptr);
  ops->LinearFp8(0, {}, stored.matrix, Rounding::kBf16, nullptr);
  ops->GroupedLinearFp8(0, {}, stored.matrix, 1, nullptr);
  ops->LinearBf16(0, nullptr, stored.matrix, Rounding::kBf16, nullptr);
  ops->MoeFfn(0, nullptr, {}, {&expert, 1}, expert, nullptr, nullptr, {32, 32, 1, 1, 1.0f},
              nullptr);
}

}  // namespace
}  // namespace deepinfer
