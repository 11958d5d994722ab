// RMSNorm, hyper-connections and the residual stream against golden vectors and fp64 loops
// (model.md §4, §5; limits of numerics.md §3).

#include <gtest/gtest.h>

#include <cmath>

#include "golden/golden_file.h"
#include "kernels/backends.h"
#include "unit/kernels/kernel_test_data.h"

namespace deepinfer {
namespace {

constexpr double kLimit = 1e-6;

TEST(ReferenceRmsNorm, MatchesTheGoldenRowsFromTinyToHugeScales) {
  const auto ops = MakeReferenceOperators();
  const GoldenFile golden("unit_vectors2");
  const std::vector<float> x = golden.Floats("rms_x"), w = golden.Floats("rms_w"),
                           want = golden.Floats("rms_y");
  // The golden weights are no bf16 values: a weight of one leaves the same last product to do.
  const std::vector<uint16_t> one(64, FloatToBf16(1.0f));
  std::vector<float> got(x.size());
  ops->RmsNorm(10, x.data(), one.data(), 64, 1e-20f, Rounding::kNone, got.data());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(w[i % 64] * got[i], want[i], kLimit * std::fabs(want[i])) << i;
  }
}

TEST(ReferenceRmsNorm, RoundsOnceAfterTheWeightAndWorksInPlace) {
  const auto ops = MakeReferenceOperators();
  constexpr int64_t kDim = 160;
  std::vector<float> x = RandomFloats(3 * kDim, 1);
  const std::vector<uint16_t> w = RandomBf16(kDim, 2);
  std::vector<float> out(x.size());
  ops->RmsNorm(3, x.data(), w.data(), kDim, 1e-20f, Rounding::kNone, out.data());
  for (int64_t t = 0; t < 3; ++t) {
    double square = 0;
    for (int64_t d = 0; d < kDim; ++d) square += std::pow(double{x[t * kDim + d]}, 2);
    for (int64_t d = 0; d < kDim; ++d) {
      const double want =
          double{Bf16ToFloat(w[d])} * x[t * kDim + d] / std::sqrt(square / kDim + 1e-20);
      EXPECT_NEAR(out[t * kDim + d], want, kLimit * std::fabs(want));
    }
  }
  ops->RmsNorm(3, x.data(), w.data(), kDim, 1e-20f, Rounding::kNone, x.data());
  EXPECT_EQ(x, out);
}

// Mixes m of a golden row reach the operator as fn whose rows hold m in one place, on a stream of
// ones, whose mean square is 1.
void CheckHc(const char* file) {
  const auto ops = MakeReferenceOperators();
  const GoldenFile golden(file);
  const std::vector<float> mixes = golden.Floats("hc_mixes"), scale = golden.Floats("hc_scale"),
                           base = golden.Floats("hc_base"), want_pre = golden.Floats("hc_pre"),
                           want_post = golden.Floats("hc_post"),
                           want_comb = golden.Floats("hc_comb");
  HcShape shape;
  shape.dim = 8;
  const int64_t width = 4 * shape.dim;
  const std::vector<float> h(static_cast<size_t>(width), 1.0f);
  for (size_t t = 0; t < 16; ++t) {
    std::vector<float> fn(static_cast<size_t>(24 * width), 0.0f);
    for (size_t i = 0; i < 24; ++i) {
      fn[i * static_cast<size_t>(width) + (i * 5 + t) % static_cast<size_t>(width)] =
          mixes[t * 24 + i];
    }
    float pre[4], post[4], comb[16];
    ops->HcMixes(1, h.data(), {fn.data(), base.data(), scale.data()}, shape, pre, post, comb);
    for (size_t j = 0; j < 4; ++j) {
      EXPECT_NEAR(pre[j], want_pre[t * 4 + j], kLimit) << file << " row " << t;
      EXPECT_NEAR(post[j], want_post[t * 4 + j], kLimit) << file << " row " << t;
    }
    for (size_t j = 0; j < 16; ++j) {
      EXPECT_NEAR(comb[j], want_comb[t * 16 + j], kLimit) << file << " row " << t << " at " << j;
    }
  }
}

TEST(ReferenceHyperConnections, MixesMatchTheGoldenRows) { CheckHc("unit_vectors"); }
TEST(ReferenceHyperConnections, StiffMixesMatchTheGoldenRows) { CheckHc("unit_vectors2"); }

TEST(ReferenceHyperConnections, MixesNormaliseTheWholeStreamAfterTheProduct) {
  const auto ops = MakeReferenceOperators();
  HcShape shape;
  shape.dim = 48;
  shape.sinkhorn_iters = 3;
  const int64_t width = 4 * shape.dim;
  const std::vector<float> h = RandomFloats(static_cast<size_t>(2 * width), 3, 5.0f),
                           fn = RandomFloats(static_cast<size_t>(24 * width), 4, 0.1f),
                           base = RandomFloats(24, 5), scale = RandomFloats(3, 6);
  float pre[8], post[8], comb[32];
  ops->HcMixes(2, h.data(), {fn.data(), base.data(), scale.data()}, shape, pre, post, comb);
  for (int64_t t = 0; t < 2; ++t) {
    double square = 0;
    for (int64_t i = 0; i < width; ++i) square += std::pow(double{h[t * width + i]}, 2);
    const double r = 1.0 / std::sqrt(square / static_cast<double>(width));
    for (int64_t j = 0; j < 4; ++j) {
      double dot_pre = 0, dot_post = 0;
      for (int64_t i = 0; i < width; ++i) {
        dot_pre += double{fn[j * width + i]} * h[t * width + i];
        dot_post += double{fn[(4 + j) * width + i]} * h[t * width + i];
      }
      EXPECT_NEAR(pre[t * 4 + j], 1 / (1 + std::exp(-(dot_pre * r * scale[0] + base[j]))) + 1e-6,
                  2e-6);
      EXPECT_NEAR(post[t * 4 + j], 2 / (1 + std::exp(-(dot_post * r * scale[1] + base[4 + j]))),
                  4e-6);
    }
    // The last step normalises columns.
    for (int64_t k = 0; k < 4; ++k) {
      double column = 0;
      for (int64_t j = 0; j < 4; ++j) column += comb[t * 16 + j * 4 + k];
      EXPECT_NEAR(column, 1.0, 5e-6);
    }
  }
}

TEST(ReferenceHyperConnections, PreAndPostMixCopiesInTheStatedDirection) {
  const auto ops = MakeReferenceOperators();
  HcShape shape;
  shape.dim = 1;
  const float h[] = {1, 10, 100, 1000}, x[] = {7};
  const float pre[] = {1, 2, 3, 4}, post[] = {0, 1, 2, 3};
  float y = 0, mean = 0, out[4];
  ops->HcPre(1, h, pre, shape, Rounding::kNone, &y);
  EXPECT_EQ(y, 4321.0f);
  // comb[source][target]: only source 1 feeds target 2.
  float comb[16] = {};
  comb[1 * 4 + 2] = 5;
  ops->HcPost(1, x, h, post, comb, shape, Rounding::kNone, out);
  EXPECT_EQ(std::vector<float>(out, out + 4), (std::vector<float>{0, 7, 14 + 50, 21}));
  ops->HcMean(1, h, shape, Rounding::kNone, &mean, 1);
  EXPECT_EQ(mean, 1111.0f / 4);
}

TEST(ReferenceStream, EmbedReplicateAndMeanRespectStrides) {
  const auto ops = MakeReferenceOperators();
  const std::vector<uint16_t> table = RandomBf16(5 * 3, 8);
  const int32_t ids[] = {4, 0, 4};
  std::vector<float> x(9), h(36), record(3 * 10, -1.0f);
  ops->Embed(3, ids, table.data(), 3, x.data());
  for (size_t i = 0; i < 9; ++i) {
    EXPECT_EQ(x[i], Bf16ToFloat(table[static_cast<size_t>(ids[i / 3]) * 3 + i % 3]));
  }
  ops->Replicate(3, x.data(), 4, 3, h.data());
  for (size_t i = 0; i < 36; ++i) EXPECT_EQ(h[i], x[i / 12 * 3 + i % 3]);
  HcShape shape;
  shape.dim = 3;
  ops->HcMean(3, h.data(), shape, Rounding::kNone, record.data() + 4, 10);
  for (size_t i = 0; i < 30; ++i) {
    const size_t c = i % 10;
    const bool inside = c >= 4 && c < 7;
    EXPECT_EQ(record[i], inside ? x[i / 10 * 3 + c - 4] : -1.0f) << i;
  }
}

}  // namespace
}  // namespace deepinfer
