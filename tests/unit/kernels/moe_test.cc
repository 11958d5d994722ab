// Mixture of experts of every level against the reference, bit for bit.

#include <algorithm>
#include <cmath>

#include "unit/kernels/kernel_test_util.h"

namespace deepinfer::test {
namespace {

struct OwnedExpert {
  OwnedExpert(WeightFormat format, const MoeShape& shape, uint64_t seed)
      : gate(format, shape.inter, shape.dim, seed),
        up(format, shape.inter, shape.dim, seed + 1),
        down(format, shape.dim, shape.inter, seed + 2) {}
  ExpertWeights view() const { return {gate.matrix, up.matrix, down.matrix}; }

  OwnedWeight gate, up, down;
};

class MoeTest : public ::testing::Test {
 protected:
  // Both roundings. `num_used` < num_experts leaves experts without rows.
  void Check(WeightFormat routed, WeightFormat shared_format, MoeShape shape, int64_t rows,
             int32_t num_used, int max_threads) {
    for (const Rounding rounding : {Rounding::kNone, Rounding::kBf16}) {
      shape.rounding = rounding;
      CheckShape(routed, shared_format, shape, rows, num_used, max_threads);
    }
  }

  void CheckShape(WeightFormat routed, WeightFormat shared_format, const MoeShape& shape,
                  int64_t rows, int32_t num_used, int max_threads) {
    SCOPED_TRACE("dim " + std::to_string(shape.dim) + ", inter " + std::to_string(shape.inter) +
                 ", rows " + std::to_string(rows));
    std::vector<OwnedExpert> owned;
    std::vector<ExpertWeights> experts;
    for (int32_t e = 0; e < shape.num_experts; ++e) {
      owned.emplace_back(routed, shape, 100 + 3 * static_cast<uint64_t>(e));
      experts.push_back(owned.back().view());
    }
    const OwnedExpert shared(shared_format, shape, 50);
    Random random(1);
    std::vector<int32_t> chosen;
    std::vector<float> weights;
    for (int64_t t = 0; t < rows; ++t) {
      const int32_t first = static_cast<int32_t>(random.Below(num_used));
      for (int32_t k = 0; k < shape.topk; ++k) {
        chosen.push_back((first + 5 * k) % num_used);
        weights.push_back(std::fabs(random.Uniform()));
      }
    }
    const OwnedFp8Rows x(rows, shape.dim, 2);
    std::vector<float> values(static_cast<size_t>(rows * shape.dim));
    DequantizeFp8Group32(x.codes.data(), x.scales.data(), static_cast<int>(rows * shape.dim),
                         values.data());
    for (bool quantized : {false, true}) {
      const auto run = [&](Operators& ops) {
        std::vector<float> y(values.size());
        ops.MoeFfn(rows, quantized ? nullptr : values.data(), quantized ? x.view() : Fp8Rows{},
                   experts, shared.view(), chosen.data(), weights.data(), shape, y.data());
        return y;
      };
      const std::vector<float> expected = run(*reference_);
      ExpectMeaningful(expected);
      ForEachBackend(max_threads, [&](Operators& ops) {
        EXPECT_TRUE(SameBits(run(ops), expected)) << (quantized ? "fp8 rows" : "f32 rows");
      });
    }
  }

  std::unique_ptr<Operators> reference_ = MakeReferenceOperators();
};

MoeShape Shape(int64_t dim, int64_t inter, int32_t experts, int32_t topk) {
  MoeShape shape;
  shape.dim = dim;
  shape.inter = inter;
  shape.num_experts = experts;
  shape.topk = topk;
  shape.swiglu_limit = 2.0f;
  return shape;
}

TEST_F(MoeTest, Fp4ExpertsWithFp8SharedExpert) {
  for (int64_t rows : {0, 1, 2, 7, 33}) {
    Check(WeightFormat::kFp4Group32, WeightFormat::kFp8Block32, Shape(544, 96, 16, 3), rows, 16, 3);
  }
}

TEST_F(MoeTest, Bf16Experts) {
  for (int64_t rows : {1, 5}) {
    Check(WeightFormat::kBf16, WeightFormat::kBf16, Shape(128, 64, 8, 3), rows, 8, 4);
  }
}

TEST_F(MoeTest, WideLayers) {
  Check(WeightFormat::kFp4Group32, WeightFormat::kFp8Block32, Shape(544, 608, 8, 2), 3, 8, 2);
}

TEST_F(MoeTest, MoreRowsThanOneTask) {
  Check(WeightFormat::kFp4Group32, WeightFormat::kFp8Block32, Shape(64, 32, 8, 2), 300, 8, 2);
}

TEST_F(MoeTest, EveryRowChoosesTheSameExperts) {
  Check(WeightFormat::kFp4Group32, WeightFormat::kFp8Block32, Shape(64, 32, 32, 1), 40, 1, 2);
}

// Ordinary logits, and those where softplus is the logit, tiny, zero or not a number; with ties.
TEST_F(MoeTest, RouterHasTheBitsOfTheReference) {
  constexpr int64_t kRows = 300;
  for (const int32_t num_experts : {8, 13, 64, 384}) {
    for (const int32_t topk : {1, 6, 8}) {
      Random random(31);
      std::vector<float> logits, bias, bias_image;
      std::vector<uint8_t> is_image;
      for (int64_t t = 0; t < kRows; ++t) {
        is_image.push_back(t % 3 == 0);
        const float width = t % 5 == 0 ? 1000.0f : (t % 5 == 1 ? 30.0f : 4.0f);
        for (int32_t e = 0; e < num_experts; ++e) logits.push_back(width * random.Uniform());
        float* row = logits.data() + t * num_experts;
        if (t % 7 == 0) std::fill(row, row + num_experts / 2, 0.25f);
        if (t % 11 == 0) row[random.Below(num_experts)] = NAN;
        if (t % 13 == 0) row[random.Below(num_experts)] = INFINITY;
        if (t % 17 == 0) row[random.Below(num_experts)] = -INFINITY;
      }
      for (int32_t e = 0; e < num_experts; ++e) {
        bias.push_back(e % 4 == 0 ? 0.0f : random.Uniform());
        bias_image.push_back(random.Uniform());
      }
      const auto run = [&](Operators& ops, std::vector<int32_t>* experts) {
        std::vector<float> weights(static_cast<size_t>(kRows * topk));
        experts->assign(weights.size(), -1);
        ops.Route(kRows, logits.data(), bias.data(), bias_image.data(), is_image.data(),
                  num_experts, topk, 1.5f, 2.5f, experts->data(), weights.data());
        return weights;
      };
      std::vector<int32_t> expected_experts, experts;
      const std::vector<float> expected = run(*reference_, &expected_experts);
      ForEachBackend(2, [&](Operators& ops) {
        const std::vector<float> weights = run(ops, &experts);
        EXPECT_EQ(experts, expected_experts) << num_experts << " experts, top " << topk;
        for (size_t i = 0; i < weights.size(); ++i) {
          ASSERT_TRUE(std::isnan(weights[i]) ? std::isnan(expected[i])
                                             : SameBits({weights[i]}, {expected[i]}))
              << num_experts << " experts, top " << topk << ", row "
              << i / static_cast<size_t>(topk);
        }
      });
    }
  }
}

// Of the rows of one batch, in every backend: the bias of images decides for image rows alone.
TEST_F(MoeTest, L01_ImageRowsTakeTheImageBias) {
  constexpr int32_t kExperts = 64, kTopk = 6;
  constexpr int64_t kRows = 200;
  constexpr int32_t kRaised[] = {11, 50};
  Random random(5);
  std::vector<float> logits;
  for (int64_t i = 0; i < kRows * kExperts; ++i) logits.push_back(4.0f * random.Uniform());
  std::vector<float> bias(kExperts, 0.0f), bias_image(kExperts, 0.0f), raised = bias_image;
  for (const int32_t expert : kRaised) raised[static_cast<size_t>(expert)] += 5.0f;
  std::vector<uint8_t> is_image;
  for (int64_t t = 0; t < kRows; ++t) is_image.push_back(t % 3 != 1);
  const auto run = [&](Operators& ops, const std::vector<float>& of_images) {
    std::vector<int32_t> experts(kRows * kTopk, -1);
    std::vector<float> weights(experts.size());
    ops.Route(kRows, logits.data(), bias.data(), of_images.data(), is_image.data(), kExperts, kTopk,
              1.0f, 1.0f, experts.data(), weights.data());
    return experts;
  };
  const auto check = [&](Operators& ops) {
    const std::vector<int32_t> plain = run(ops, bias_image), with_bias = run(ops, raised);
    for (int64_t t = 0; t < kRows; ++t) {
      const auto begin = t * kTopk, end = begin + kTopk;
      const std::span chosen(with_bias.data() + begin, kTopk);
      if (is_image[static_cast<size_t>(t)] == 0) {
        EXPECT_TRUE(
            std::equal(chosen.begin(), chosen.end(), plain.begin() + begin, plain.begin() + end))
            << "text row " << t;
        continue;
      }
      for (const int32_t expert : kRaised) {
        EXPECT_NE(std::find(chosen.begin(), chosen.end(), expert), chosen.end()) << "row " << t;
      }
    }
  };
  check(*reference_);
  ForEachBackend(2, check);
}

}  // namespace
}  // namespace deepinfer::test
