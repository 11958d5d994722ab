// Router, experts and Engram write-back (model.md §9, §10.3).

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/backends.h"
#include "unit/kernels/kernel_test_data.h"

namespace deepinfer {
namespace {

double PlainScore(double logit) {
  return std::sqrt(logit > 20 ? logit : std::log1p(std::exp(logit)));
}

struct Routed {
  std::vector<int32_t> experts;
  std::vector<float> weights;
};

Routed RouteOne(const std::vector<float>& logits, const std::vector<float>& bias,
                const std::vector<float>& bias_image, uint8_t is_image, int32_t topk,
                float temperature = 1.0f) {
  Routed r{std::vector<int32_t>(static_cast<size_t>(topk), -1),
           std::vector<float>(static_cast<size_t>(topk))};
  MakeReferenceOperators()->Route(1, logits.data(), bias.data(), bias_image.data(), &is_image,
                                  static_cast<int32_t>(logits.size()), topk, temperature, 1.5f,
                                  r.experts.data(), r.weights.data());
  return r;
}

TEST(ReferenceRouter, TiesGoToTheLowerExpert) {
  const std::vector<float> zero(8, 0.0f);
  const Routed all_equal = RouteOne(std::vector<float>(8, 0.7f), zero, zero, 0, 3);
  EXPECT_EQ(all_equal.experts, (std::vector<int32_t>{0, 1, 2}));
  for (float w : all_equal.weights) EXPECT_NEAR(w, 0.5f, 1e-6);
  const std::vector<float> logits = {1, 3, 2, 3, 2, 1, 3, 2};
  EXPECT_EQ(RouteOne(logits, zero, zero, 0, 4).experts, (std::vector<int32_t>{1, 3, 6, 2}));
}

TEST(ReferenceRouter, TheBiasSelectsButDoesNotWeigh) {
  const std::vector<float> logits = {0.1f, 0.5f, -3.0f, 30.0f}, zero(4, 0.0f);
  std::vector<float> bias = {0.0f, 0.0f, 100.0f, 0.0f};
  const Routed r = RouteOne(logits, bias, zero, 0, 2);
  EXPECT_EQ(r.experts, (std::vector<int32_t>{2, 3}));
  const double a = PlainScore(-3.0), b = PlainScore(30.0);
  EXPECT_NEAR(r.weights[0], a / (a + b) * 1.5, 1e-6);
  EXPECT_NEAR(r.weights[1], b / (a + b) * 1.5, 1e-6);
  // Image rows use their own bias, and only they do.
  EXPECT_EQ(RouteOne(logits, bias, zero, 1, 2).experts, (std::vector<int32_t>{3, 1}));
  EXPECT_EQ(RouteOne(logits, zero, bias, 1, 2).experts, (std::vector<int32_t>{2, 3}));
}

TEST(ReferenceRouter, TheTemperatureDividesTheLogits) {
  const std::vector<float> logits = {4.0f, -2.0f}, zero(2, 0.0f);
  const Routed r = RouteOne(logits, zero, zero, 0, 2, 2.0f);
  const double a = PlainScore(2.0), b = PlainScore(-1.0);
  EXPECT_NEAR(r.weights[0], a / (a + b) * 1.5, 1e-6);
}

TEST(ReferenceRouter, DamagedLogitsStillNameExperts) {
  const std::vector<float> zero(4, 0.0f);
  const Routed r = RouteOne({NAN, NAN, -INFINITY, NAN}, zero, zero, 0, 3);
  EXPECT_EQ(r.experts, (std::vector<int32_t>{2, 0, 1}));
}

// Experts of width 32 whose matrices hold one value on a diagonal.
class DiagonalExpert {
 public:
  DiagonalExpert(float gate, float up, float down) {
    Fill(gate, &gate_);
    Fill(up, &up_);
    Fill(down, &down_);
  }
  ExpertWeights Weights() const { return {Matrix(gate_), Matrix(up_), Matrix(down_)}; }

 private:
  static constexpr int64_t kDim = 32;
  static void Fill(float value, std::vector<float>* m) {
    m->assign(kDim * kDim, 0.0f);
    for (size_t i = 0; i < kDim; ++i) (*m)[i * kDim + i] = value;
  }
  static WeightMatrix Matrix(const std::vector<float>& m) {
    return {WeightFormat::kF32, kDim, kDim, m.data(), nullptr};
  }
  std::vector<float> gate_, up_, down_;
};

double Silu(double x) { return x / (1 + std::exp(-x)); }

TEST(ReferenceExperts, GateIsClampedFromAboveAndUpOnBothSides) {
  const auto ops = MakeReferenceOperators();
  const DiagonalExpert unit(1.0f, 1.0f, 1.0f), mixed(1.0f, -1.0f, 1.0f), none(0.0f, 0.0f, 0.0f);
  MoeShape shape;
  shape.dim = shape.inter = 32;
  shape.num_experts = 2;
  shape.topk = 1;
  shape.swiglu_limit = 2.0f;
  std::vector<float> x(32, 0.0f), out(32);
  x[0] = 0.5f;
  x[1] = 50.0f;
  x[2] = -50.0f;
  x[3] = -1.0f;
  const ExpertWeights experts[] = {unit.Weights(), mixed.Weights()};
  const float weight = 0.25f;
  for (int32_t e : {0, 1}) {
    ops->MoeFfn(1, x.data(), {}, experts, none.Weights(), &e, &weight, shape, out.data());
    const double sign = e == 0 ? 1 : -1;
    EXPECT_NEAR(out[0], 0.25 * Silu(0.5) * 0.5 * sign, 1e-6);
    EXPECT_NEAR(out[1], 0.25 * Silu(2.0) * 2.0 * sign, 1e-6);
    // The gate keeps its negative tail, far beyond the limit.
    EXPECT_NEAR(out[2], 0.25 * Silu(-50.0) * -2.0 * sign, 1e-6);
    EXPECT_NEAR(out[3], 0.25 * Silu(-1.0) * -1.0 * sign, 1e-6);
  }
}

TEST(ReferenceExperts, ExpertsAddUpWithTheirWeightsAndTheSharedOneWithOne) {
  const auto ops = MakeReferenceOperators();
  const DiagonalExpert a(1.0f, 1.0f, 1.0f), b(1.0f, 1.0f, 3.0f), shared(1.0f, 1.0f, 10.0f);
  MoeShape shape;
  shape.dim = shape.inter = 32;
  shape.num_experts = 2;
  shape.topk = 2;
  shape.swiglu_limit = 100.0f;
  const std::vector<float> x = RandomFloats(32, 61);
  std::vector<float> out(32);
  const ExpertWeights experts[] = {a.Weights(), b.Weights()};
  const int32_t chosen[] = {1, 0};
  const float weights[] = {0.5f, 0.125f};
  ops->MoeFfn(1, x.data(), {}, experts, shared.Weights(), chosen, weights, shape, out.data());
  for (size_t i = 0; i < 32; ++i) {
    EXPECT_NEAR(out[i], Silu(x[i]) * x[i] * (0.5 * 3 + 0.125 + 10), 2e-5);
  }
}

TEST(ReferenceExperts, QuantisedRowsQuantiseTheWeightedProduct) {
  const auto ops = MakeReferenceOperators();
  // Identity experts in a format that the bf16dot family takes.
  std::vector<uint16_t> identity(32 * 32, 0);
  for (size_t i = 0; i < 32; ++i) identity[i * 33] = FloatToBf16(1.0f);
  const WeightMatrix m{WeightFormat::kBf16, 32, 32, identity.data(), nullptr};
  const std::vector<uint16_t> zeros(32 * 32, 0);
  const WeightMatrix z{WeightFormat::kBf16, 32, 32, zeros.data(), nullptr};
  MoeShape shape;
  shape.dim = shape.inter = 32;
  shape.num_experts = 1;
  shape.topk = 1;
  shape.swiglu_limit = 10.0f;
  const std::vector<float> x = RandomFloats(32, 62);
  std::vector<uint8_t> codes(32), scales(1);
  ops->QuantizeFp8(1, x.data(), 32, {codes.data(), scales.data()});
  const ExpertWeights expert{m, m, m};
  const int32_t chosen = 0;
  const float weight = 0.7f;
  std::vector<float> out(32);
  ops->MoeFfn(1, nullptr, {codes.data(), scales.data()}, {&expert, 1}, {z, z, z}, &chosen, &weight,
              shape, out.data());
  double amax = 0;
  std::vector<double> product(32);
  for (size_t i = 0; i < 32; ++i) {
    const double v = double{E4m3ToFloat(codes[i])} * E8m0ToFloat(scales[0]);
    product[i] = 0.7 * Silu(v) * v;
    amax = std::max(amax, std::fabs(product[i]));
  }
  const double scale = std::exp2(std::ceil(std::log2(amax / 448)));
  for (size_t i = 0; i < 32; ++i) {
    // On the grid of its group, and the nearest point of it.
    const double code = out[i] / scale;
    EXPECT_EQ(static_cast<float>(code), E4m3ToFloat(FloatToE4m3(static_cast<float>(code))));
    EXPECT_NEAR(out[i], product[i], std::max(std::fabs(product[i]) / 15.9, scale * 0x1p-9));
  }
}

TEST(ReferenceEngram, GatherDequantisesAndConcatenatesRows) {
  const auto ops = MakeReferenceOperators();
  std::vector<uint8_t> codes(5 * 64), scales = {127, 128, 126, 127, 120, 130, 127, 127, 100, 127};
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i * 37 % 120);
  const WeightMatrix table{WeightFormat::kFp8Group32, 5, 64, codes.data(), scales.data()};
  const int64_t ids[] = {4, 0, 2, 2, 1, 3};
  std::vector<float> out(6 * 64);
  ops->EngramGather(2, ids, 3, table, out.data());
  for (size_t i = 0; i < out.size(); ++i) {
    const size_t row = static_cast<size_t>(ids[i / 64]), c = i % 64;
    EXPECT_EQ(out[i], E4m3ToFloat(codes[row * 64 + c]) * E8m0ToFloat(scales[row * 2 + c / 32]));
  }
}

TEST(ReferenceEngram, GatesFollowTheFormulaAndImagesAreLeftAlone) {
  const auto ops = MakeReferenceOperators();
  HcShape shape;
  shape.num_copies = 2;
  shape.dim = 48;
  constexpr size_t kDim = 48;
  const std::vector<float> h = RandomFloats(3 * 2 * kDim, 71, 3.0f),
                           kvv = RandomFloats(3 * 3 * kDim, 72);
  const std::vector<uint16_t> qw = RandomBf16(2 * kDim, 73), kw = RandomBf16(2 * kDim, 74);
  const uint8_t is_image[] = {0, 1, 0};
  std::vector<float> got = h;
  ops->EngramGate(3, got.data(), kvv.data(), qw.data(), kw.data(), is_image, shape,
                  Rounding::kNone);
  for (size_t t = 0; t < 3; ++t) {
    for (size_t c = 0; c < 2; ++c) {
      const float* x = h.data() + (t * 2 + c) * kDim;
      const float* key = kvv.data() + (t * 3 + c) * kDim;
      const float* value = kvv.data() + (t * 3 + 2) * kDim;
      double d = 0, xx = 0, kk = 0;
      for (size_t i = 0; i < kDim; ++i) {
        d += double{x[i]} * Bf16ToFloat(qw[c * kDim + i]) * Bf16ToFloat(kw[c * kDim + i]) * key[i];
        xx += double{x[i]} * x[i];
        kk += double{key[i]} * key[i];
      }
      d /= std::sqrt(xx / kDim) * std::sqrt(kk / kDim) * std::sqrt(double{kDim});
      const double gate =
          1 / (1 + std::exp(-std::copysign(std::sqrt(std::max(std::fabs(d), 1e-6)), d)));
      for (size_t i = 0; i < kDim; ++i) {
        const double want = is_image[t] != 0 ? x[i] : x[i] + gate * value[i];
        EXPECT_NEAR(got[(t * 2 + c) * kDim + i], want, is_image[t] != 0 ? 0.0 : 2e-6);
      }
    }
  }
}

}  // namespace
}  // namespace deepinfer
