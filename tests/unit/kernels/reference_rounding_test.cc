// Operators that round their results to bf16 against plain loops of the same steps (model.md §1).

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "base/det_math.h"
#include "kernels/backends.h"
#include "tensor/quantize.h"
#include "unit/kernels/kernel_test_data.h"

namespace deepinfer {
namespace {

std::vector<float> Rounded(std::vector<float> v) {
  for (float& x : v) x = RoundToBf16(x);
  return v;
}

// One bf16 step at x, and none at zero.
double Bf16Step(double x) {
  return x == 0 ? 0x1p-133 : std::ldexp(1.0, std::max(std::ilogb(x), -126) - 7);
}

// run(rounding) = the results of an operator.
void ExpectRoundedResults(const std::function<std::vector<float>(Rounding)>& run) {
  const std::vector<float> plain = run(Rounding::kNone), rounded = run(Rounding::kBf16);
  EXPECT_EQ(rounded, Rounded(plain));
  EXPECT_NE(rounded, plain) << "nothing was left to round";
}

TEST(Rounding, TiesGoToEvenAndDenormalsAndNanStay) {
  const auto ops = MakeReferenceOperators();
  const HcShape one_copy{1, 6, 20, 0.0f, 0.0f};
  const float mix = 1.0f;
  const std::vector<float> h = {1.0f + 0x1p-8f, 1.0f + 3 * 0x1p-8f, 0x1p-130f + 0x1p-140f,
                                3.4e38f,        -INFINITY,          NAN};
  std::vector<float> out(6);
  ops->HcPre(1, h.data(), &mix, one_copy, Rounding::kBf16, out.data());
  EXPECT_EQ(out[0], 1.0f);
  EXPECT_EQ(out[1], 1.0f + 0x1p-6f);
  EXPECT_EQ(out[2], 0x1p-130f);
  EXPECT_EQ(out[3], INFINITY);
  EXPECT_EQ(out[4], -INFINITY);
  EXPECT_TRUE(std::isnan(out[5]));
}

TEST(Rounding, NormsRotationPoolingAndStreamRoundOnceAtTheEnd) {
  const auto ops = MakeReferenceOperators();
  constexpr int64_t kRows = 3, kDim = 96;
  constexpr int32_t kCopies = 4;
  const std::vector<uint16_t> w = RandomBf16(kDim, 1);
  const std::vector<float> x = RandomFloats(kRows * kDim, 2),
                           h = RandomFloats(kRows * kCopies * kDim, 3),
                           mix = RandomFloats(kRows * kCopies, 4),
                           comb = RandomFloats(kRows * kCopies * kCopies, 5);
  const HcShape shape{kCopies, kDim, 20, 1e-6f, 1e-20f};
  ExpectRoundedResults([&](Rounding r) {
    std::vector<float> out(x.size());
    ops->RmsNorm(kRows, x.data(), w.data(), kDim, 1e-20f, r, out.data());
    return out;
  });
  ExpectRoundedResults([&](Rounding r) {
    std::vector<float> out(x.size());
    ops->HcPre(kRows, h.data(), mix.data(), shape, r, out.data());
    return out;
  });
  ExpectRoundedResults([&](Rounding r) {
    std::vector<float> out(h.size());
    ops->HcPost(kRows, x.data(), h.data(), mix.data(), comb.data(), shape, r, out.data());
    return out;
  });
  ExpectRoundedResults([&](Rounding r) {
    std::vector<float> out(x.size());
    ops->HcMean(kRows, h.data(), shape, r, out.data(), kDim);
    return out;
  });
  ExpectRoundedResults([&](Rounding r) {
    std::vector<float> out(x.size());
    ops->CompressPair(kRows, x.data(), h.data(), h.data() + kRows * kDim, mix.data(), 4, 4, r,
                      out.data());
    return out;
  });
}

TEST(Rounding, RotationRoundsTheRotatedChannelsOnly) {
  const auto ops = MakeReferenceOperators();
  constexpr int32_t kDim = 12, kRotary = 4;
  const std::vector<float> cos = {0.9f, -0.3f}, sin = {0.43589f, 0.95394f};
  const RopeTable table{cos.data(), sin.data(), kRotary, 1};
  const int32_t position = 0;
  const std::vector<float> x = RandomFloats(kDim, 6);
  const auto run = [&](Rounding r) {
    std::vector<float> out = x;
    ops->Rope(1, out.data(), 1, kDim, &position, table, false, r);
    return out;
  };
  std::vector<float> want = run(Rounding::kNone);
  for (size_t c = kDim - kRotary; c < kDim; ++c) want[c] = RoundToBf16(want[c]);
  EXPECT_EQ(run(Rounding::kBf16), want);
  EXPECT_NE(run(Rounding::kNone), want);
}

TEST(Rounding, EngramGateRoundsTheStreamButNotImageRows) {
  const auto ops = MakeReferenceOperators();
  constexpr int64_t kDim = 48;
  const HcShape shape{2, kDim, 20, 1e-6f, 1e-20f};
  const std::vector<float> h = RandomFloats(2 * 2 * kDim, 7), kvv = RandomFloats(2 * 3 * kDim, 8);
  const std::vector<uint16_t> q = RandomBf16(2 * kDim, 9), k = RandomBf16(2 * kDim, 10);
  const uint8_t is_image[] = {0, 1};
  const auto run = [&](Rounding r) {
    std::vector<float> out = h;
    ops->EngramGate(2, out.data(), kvv.data(), q.data(), k.data(), is_image, shape, r);
    return out;
  };
  std::vector<float> want = run(Rounding::kNone);
  for (size_t i = 0; i < 2 * kDim; ++i) want[i] = RoundToBf16(want[i]);
  EXPECT_EQ(run(Rounding::kBf16), want);
  EXPECT_TRUE(std::equal(h.begin() + 2 * kDim, h.end(), want.begin() + 2 * kDim));
}

TEST(Rounding, LinearsOnBf16RowsAreWithinOneStepOfFp64) {
  const auto ops = MakeReferenceOperators();
  constexpr int64_t kRows = 3, kIn = 1056, kOut = 40;
  const std::vector<float> x = Rounded(RandomFloats(kRows * kIn, 11));
  const std::vector<uint16_t> w = RandomBf16(kOut * kIn, 12);
  const WeightMatrix matrix{WeightFormat::kBf16, kOut, kIn, w.data(), nullptr};
  std::vector<float> plain(kRows * kOut), rounded(kRows * kOut);
  ops->LinearBf16(kRows, x.data(), matrix, Rounding::kNone, plain.data());
  ops->LinearBf16(kRows, x.data(), matrix, Rounding::kBf16, rounded.data());
  EXPECT_EQ(rounded, Rounded(plain));
  for (size_t m = 0; m < kRows; ++m) {
    for (size_t n = 0; n < kOut; ++n) {
      double sum = 0, magnitude = 0;
      for (size_t i = 0; i < kIn; ++i) {
        const double p = double{x[m * kIn + i]} * Bf16ToFloat(w[n * kIn + i]);
        sum += p;
        magnitude += std::fabs(p);
      }
      EXPECT_NEAR(plain[m * kOut + n], sum, 2.0 * kIn * 0x1p-24 * magnitude);
      EXPECT_NEAR(rounded[m * kOut + n], sum, Bf16Step(sum));
    }
  }
}

// The higher element of a pair first, one fp32 rounding per product and sum, denormals to zero.
TEST(Rounding, PairsOfBf16RowsFollowTheFamily) {
  const auto ops = MakeReferenceOperators();
  const std::vector<uint16_t> ones(8, FloatToBf16(1.0f));
  const auto sum = [&](const std::vector<float>& x) {
    float y = -1;
    ops->LinearBf16(1, x.data(), {WeightFormat::kBf16, 1, 8, ones.data(), nullptr}, Rounding::kNone,
                    &y);
    return y;
  };
  // A sum of 2^24 swallows a 1 unless -2^24 comes first: the order is 4, 0, 5, 1, ...
  EXPECT_EQ(sum({0, 1, 0, 0, 0x1p24f, -0x1p24f, 0, 0}), 1.0f);
  EXPECT_EQ(sum({0, -0x1p24f, 0, 0, 0x1p24f, 1, 0, 0}), 0.0f);
  EXPECT_EQ(sum({0x1p-130f, 0, 0, 0, 0, 0, 0, 0}), 0.0f);
}

TEST(Rounding, GroupedFp8RowsUseTheirOwnColumnsAndKeepFp32Results) {
  const auto ops = MakeReferenceOperators();
  constexpr int64_t kRows = 2, kIn = 64, kPerGroup = 8;
  constexpr int32_t kGroups = 3;
  const std::vector<float> x = RandomFloats(kRows * kGroups * kIn, 13);
  const std::vector<uint16_t> w = RandomBf16(kGroups * kPerGroup * kIn, 14);
  const WeightMatrix matrix{WeightFormat::kBf16, kGroups * kPerGroup, kIn, w.data(), nullptr};
  std::vector<uint8_t> codes(x.size()), scales(x.size() / 32);
  ops->QuantizeFp8(kRows, x.data(), kGroups * kIn, {codes.data(), scales.data()});
  std::vector<float> got(kRows * kGroups * kPerGroup), want(kPerGroup);
  ops->GroupedLinearFp8(kRows, {codes.data(), scales.data()}, matrix, kGroups, got.data());
  for (int64_t t = 0; t < kRows; ++t) {
    for (int64_t g = 0; g < kGroups; ++g) {
      const int64_t column = (t * kGroups + g) * kIn;
      const WeightMatrix part{WeightFormat::kBf16, kPerGroup, kIn, w.data() + g * kPerGroup * kIn,
                              nullptr};
      ops->LinearFp8(1, {codes.data() + column, scales.data() + column / 32}, part, Rounding::kNone,
                     want.data());
      const float* part_of_got = got.data() + (t * kGroups + g) * kPerGroup;
      EXPECT_TRUE(std::equal(want.begin(), want.end(), part_of_got)) << t << " " << g;
    }
  }
}

// gate and up bf16, product fp32 into FP8, an expert's row bf16, the sum fp32 and then bf16.
TEST(Rounding, ExpertsRoundAtEveryMarkedPoint) {
  const auto ops = MakeReferenceOperators();
  constexpr int64_t kDim = 64, kInter = 32;
  const std::vector<uint16_t> w = RandomBf16(6 * kDim * kInter, 15, 0.3f);
  const auto expert = [&](int64_t i) {
    const uint16_t* base = w.data() + 3 * i * kDim * kInter;
    const auto matrix = [&](int64_t j, int64_t out, int64_t in) {
      return WeightMatrix{WeightFormat::kBf16, out, in, base + j * kDim * kInter, nullptr};
    };
    return ExpertWeights{matrix(0, kInter, kDim), matrix(1, kInter, kDim), matrix(2, kDim, kInter)};
  };
  const ExpertWeights routed = expert(0), shared = expert(1);
  MoeShape shape;
  shape.dim = kDim;
  shape.inter = kInter;
  shape.num_experts = shape.topk = 1;
  shape.swiglu_limit = 1.5f;
  shape.rounding = Rounding::kBf16;
  const std::vector<float> x = RandomFloats(kDim, 16);
  std::vector<uint8_t> codes(kDim), scales(kDim / 32), product(kInter + kInter / 32);
  ops->QuantizeFp8(1, x.data(), kDim, {codes.data(), scales.data()});
  const Fp8Rows row{codes.data(), scales.data()};
  const auto plain = [&](const ExpertWeights& e, float weight) {
    std::vector<float> gate(kInter), up(kInter), y(kDim);
    ops->LinearFp8(1, row, e.gate, Rounding::kNone, gate.data());
    ops->LinearFp8(1, row, e.up, Rounding::kNone, up.data());
    for (size_t i = 0; i < kInter; ++i) {
      const float g = std::min(RoundToBf16(gate[i]), 1.5f);
      gate[i] = weight * (DetSilu(g) * std::clamp(RoundToBf16(up[i]), -1.5f, 1.5f));
    }
    const Fp8RowsOut out{product.data(), product.data() + kInter};
    ops->QuantizeFp8(1, gate.data(), kInter, out);
    ops->LinearFp8(1, out, e.down, Rounding::kNone, y.data());
    return Rounded(y);
  };
  const float weight = 0.37f;
  const int32_t chosen = 0;
  std::vector<float> want = plain(routed, weight), got(kDim);
  const std::vector<float> last = plain(shared, 1.0f);
  for (size_t i = 0; i < kDim; ++i) want[i] = RoundToBf16(want[i] + last[i]);
  ops->MoeFfn(1, nullptr, row, {&routed, 1}, shared, &chosen, &weight, shape, got.data());
  EXPECT_EQ(got, want);
}

TEST(Rounding, StoredEngramRowsAreTheTablesBytes) {
  const auto ops = MakeReferenceOperators();
  std::vector<uint8_t> codes(5 * 64), scales = {127, 0, 126, 127, 120, 254, 127, 1, 100, 127};
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i * 37 % 120);
  const WeightMatrix table{WeightFormat::kFp8Group32, 5, 64, codes.data(), scales.data()};
  const int64_t ids[] = {4, 0, 2, 2, 1, 3};
  std::vector<uint8_t> got(6 * 64), got_scales(6 * 2);
  ops->EngramGatherFp8(2, ids, 3, table, {got.data(), got_scales.data()});
  for (size_t i = 0; i < 6; ++i) {
    const size_t row = static_cast<size_t>(ids[i]);
    EXPECT_TRUE(std::equal(got.begin() + i * 64, got.begin() + (i + 1) * 64, &codes[row * 64]));
    EXPECT_EQ(got_scales[2 * i], scales[2 * row]);
    EXPECT_EQ(got_scales[2 * i + 1], scales[2 * row + 1]);
  }
}

TEST(Rounding, EntriesByReciprocalRoundTheTiesOfScale1875Up) {
  const auto ops = MakeReferenceOperators();
  KvPages pages;
  pages.entries_per_block = 1;
  pages.main_row_bytes = CompressedRowBytes(KvFormat::kQuantized, 16);
  pages.block_stride = pages.main_row_bytes;
  const int32_t table = 0;
  std::vector<std::byte> pool(static_cast<size_t>(pages.block_stride));
  pages.pool = pool.data();
  pages.block_table = &table;
  const auto codes_of = [&](const std::vector<float>& x, bool by_reciprocal) {
    ops->StoreCompressed(1, x.data(), 16, KvFormat::kQuantized, by_reciprocal, 0, pages);
    std::vector<int> codes;
    for (size_t i = 0; i < 6; ++i) {
      const int byte = std::to_integer<int>(pool[i / 2]);
      codes.push_back(i % 2 == 0 ? byte & 15 : byte >> 4);
    }
    return codes;
  };
  for (const float s : {0.9375f, 1.875f, 15.0f}) {
    for (const float sign : {1.0f, -1.0f}) {
      std::vector<float> x(16, 0.0f);
      const float ratios[] = {1.25f, 2.5f, 5.0f, 0.75f, 1.75f, 3.5f};
      for (size_t i = 0; i < 6; ++i) x[i] = sign * ratios[i] * s;
      x[15] = 6 * s;  // makes the scale s
      const int bit = sign < 0 ? 8 : 0;
      const std::vector<int> even = {2 | bit, 4 | bit, 6 | bit, 2 | bit, 4 | bit, 6 | bit};
      const std::vector<int> up = {3 | bit, 5 | bit, 7 | bit, 2 | bit, 4 | bit, 6 | bit};
      EXPECT_EQ(codes_of(x, false), even) << s;
      EXPECT_EQ(codes_of(x, true), up) << s;
    }
  }
}

// The weights of a tile are exp(s - max so far), rounded for the values and not for the sums.
TEST(Rounding, SoftmaxWeightsRoundForTheValuesOnly) {
  const auto ops = MakeReferenceOperators();
  constexpr int kDim = 32, kKeys = 5;
  FloatPages pages(kKeys, kDim, 16);
  const std::vector<float> keys = Rounded(RandomFloats(kKeys * kDim, 17)),
                           q = Rounded(RandomFloats(kDim, 18));
  std::vector<int32_t> selected;
  for (int32_t j = 0; j < kKeys; ++j) {
    pages.SetMain(j, keys.data() + j * kDim);
    selected.push_back(j);
  }
  const int32_t count = kKeys;
  AttentionRow row;
  row.window_lo = 1;  // no window key
  row.pages = pages.pages();
  row.selected = selected.data();
  row.num_selected = &count;
  AttentionShape shape{KvFormat::kFloat32, 1, kDim, 0.25f, Rounding::kBf16};
  const float sink = 0.1f;
  std::vector<float> o(kDim);
  ops->Attention({&row, 1}, q.data(), &sink, shape, o.data());

  std::vector<double> s(kKeys);
  double max = -INFINITY, sum = 0;
  for (size_t j = 0; j < kKeys; ++j) {
    for (size_t c = 0; c < kDim; ++c) s[j] += double{q[c]} * keys[j * kDim + c] * 0.25;
    max = std::max(max, s[j]);
  }
  std::vector<double> want(kDim), unrounded(kDim);
  for (size_t j = 0; j < kKeys; ++j) {
    const double weight = std::exp(s[j] - max);
    sum += weight;
    for (size_t c = 0; c < kDim; ++c) {
      want[c] += RoundToBf16(static_cast<float>(weight)) * keys[j * kDim + c];
      unrounded[c] += weight * keys[j * kDim + c];
    }
  }
  sum += std::exp(double{sink} - max);
  double effect = 0;
  for (size_t c = 0; c < kDim; ++c) {
    EXPECT_NEAR(o[c], want[c] / sum, 5e-6) << c;
    effect = std::max(effect, std::fabs(want[c] - unrounded[c]) / sum);
  }
  EXPECT_GT(effect, 1e-4) << "the rounding must show";
}

}  // namespace
}  // namespace deepinfer
