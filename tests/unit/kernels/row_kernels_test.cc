// Norms, hyper-connections, rotation, Engram gate and the vector exponential against the reference.

#include "base/det_math.h"
#include "kernels/cpu/levels.h"
#include "unit/kernels/kernel_test_util.h"

namespace deepinfer::test {
namespace {

std::vector<uint16_t> RandomBf16(int64_t n, uint64_t seed) {
  const std::vector<float> x = RandomFloats(n, seed);
  std::vector<uint16_t> v(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    v[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(x[i]) >> 16);
  }
  return v;
}

constexpr Rounding kRoundings[] = {Rounding::kNone, Rounding::kBf16};

class RowKernelsTest : public ::testing::Test {
 protected:
  std::unique_ptr<Operators> reference_ = MakeReferenceOperators();
};

TEST_F(RowKernelsTest, RmsNorm) {
  for (int64_t dim : {1, 15, 16, 33, 128, 5120}) {
    const std::vector<uint16_t> w = RandomBf16(dim, 1);
    std::vector<float> x = RandomFloats(17 * dim, 2);
    std::fill(x.begin(), x.begin() + dim, 0.0f);
    for (int64_t i = dim; i < 2 * dim; ++i) x[static_cast<size_t>(i)] *= 1e-18f;
    for (const Rounding rounding : kRoundings) {
      std::vector<float> expected(x.size());
      reference_->RmsNorm(17, x.data(), w.data(), dim, 1e-20f, rounding, expected.data());
      ForEachBackend(4, [&](Operators& ops) {
        std::vector<float> y = x;  // in place
        ops.RmsNorm(17, y.data(), w.data(), dim, 1e-20f, rounding, y.data());
        EXPECT_TRUE(SameBits(y, expected)) << dim;
      });
    }
  }
}

TEST_F(RowKernelsTest, HyperConnections) {
  for (int32_t copies : {1, 4, 5}) {
    for (int64_t dim : {32, 100, 2080}) {
      for (int64_t rows : {0, 1, 9, 17}) {
        HcShape shape;
        shape.num_copies = copies;
        shape.dim = dim;
        const size_t n = static_cast<size_t>(copies), t = static_cast<size_t>(rows);
        const size_t d = static_cast<size_t>(dim);
        const int64_t mixes = (2 + copies) * copies;
        const std::vector<float> fn = RandomFloats(mixes * copies * dim, 3);
        const std::vector<float> base = RandomFloats(mixes, 4), scale = RandomFloats(3, 5);
        const HcSite site{fn.data(), base.data(), scale.data()};
        const std::vector<float> h = RandomFloats(rows * copies * dim, 6);
        const std::vector<float> x = RandomFloats(rows * dim, 7);
        const auto run = [&](Operators& ops, Rounding rounding) {
          std::vector<std::vector<float>> out = {
              std::vector<float>(t * n), std::vector<float>(t * n), std::vector<float>(t * n * n),
              std::vector<float>(t * d), std::vector<float>(t * n * d)};
          ops.HcMixes(rows, h.data(), site, shape, out[0].data(), out[1].data(), out[2].data());
          ops.HcPre(rows, h.data(), out[0].data(), shape, rounding, out[3].data());
          ops.HcPost(rows, x.data(), h.data(), out[1].data(), out[2].data(), shape, rounding,
                     out[4].data());
          return out;
        };
        for (const Rounding rounding : kRoundings) {
          const auto expected = run(*reference_, rounding);
          ForEachBackend(3, [&](Operators& ops) {
            const auto actual = run(ops, rounding);
            for (size_t i = 0; i < expected.size(); ++i) {
              EXPECT_TRUE(SameBits(actual[i], expected[i]))
                  << "output " << i << ", copies " << copies << ", dim " << dim << ", rows "
                  << rows;
            }
          });
        }
      }
    }
  }
}

TEST_F(RowKernelsTest, Rope) {
  constexpr int64_t kRows = 9;
  constexpr int32_t kHeads = 5, kHeadDim = 48, kRotary = 16, kPositions = 40;
  const std::vector<float> angle = RandomFloats(kPositions * kRotary / 2, 8);
  std::vector<float> cos, sin;
  for (float a : angle) {
    cos.push_back(std::cos(a));
    sin.push_back(std::sin(a));
  }
  const RopeTable table{cos.data(), sin.data(), kRotary, kPositions};
  const std::vector<int32_t> positions = {0, 39, 7, 7, 1, 2, 30, 31, 11};
  const std::vector<float> x = RandomFloats(kRows * kHeads * kHeadDim, 9);
  for (const Rounding rounding : kRoundings) {
    for (bool inverse : {false, true}) {
      std::vector<float> expected = x;
      reference_->Rope(kRows, expected.data(), kHeads, kHeadDim, positions.data(), table, inverse,
                       rounding);
      ForEachBackend(3, [&](Operators& ops) {
        std::vector<float> y = x;
        ops.Rope(kRows, y.data(), kHeads, kHeadDim, positions.data(), table, inverse, rounding);
        EXPECT_TRUE(SameBits(y, expected));
      });
    }
  }
}

TEST_F(RowKernelsTest, EngramGate) {
  for (int64_t dim : {31, 128, 5120}) {
    HcShape shape;
    shape.num_copies = 4;
    shape.dim = dim;
    constexpr int64_t kRows = 5;
    const std::vector<float> h = RandomFloats(kRows * 4 * dim, 10);
    std::vector<float> kvv = RandomFloats(kRows * 5 * dim, 11);
    std::fill(kvv.begin(), kvv.begin() + dim, 0.0f);  // a gate of exactly sigmoid(sqrt(1e-6))
    const std::vector<uint16_t> q = RandomBf16(4 * dim, 12), k = RandomBf16(4 * dim, 13);
    const uint8_t is_image[kRows] = {0, 0, 1, 0, 1};
    for (const Rounding rounding : kRoundings) {
      std::vector<float> expected = h;
      reference_->EngramGate(kRows, expected.data(), kvv.data(), q.data(), k.data(), is_image,
                             shape, rounding);
      ForEachBackend(3, [&](Operators& ops) {
        std::vector<float> y = h;
        ops.EngramGate(kRows, y.data(), kvv.data(), q.data(), k.data(), is_image, shape, rounding);
        EXPECT_TRUE(SameBits(y, expected)) << dim;
      });
    }
  }
}

TEST_F(RowKernelsTest, VectorExponentialIsDetExp) {
  // Every 1031st float: all exponents, both signs, infinities and NaN.
  std::vector<float> x, expected;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 1031) {
    x.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  // The interesting interval more densely.
  for (int i = 0; i < 300000; ++i) x.push_back(-105.0f + static_cast<float>(i) * 0.00065f);
  for (float v : {0.0f, -0.0f, INFINITY, -INFINITY, NAN, -104.0f, 88.8f, 88.72284f, -103.97f}) {
    x.push_back(v);
  }
  for (float v : x) expected.push_back(DetExp(v));
  std::vector<float> y(x.size());
  for (IsaLevel level : VectorLevels()) {
    RowKernels kernels;
    if (level == IsaLevel::kAvx2) {
      FillRowAvx2(&kernels);
    } else {
      FillRowAvx512(&kernels);
    }
    kernels.exp(static_cast<int64_t>(x.size()), x.data(), y.data());
    EXPECT_TRUE(SameBits(y, expected)) << IsaLevelName(level);
  }
}

}  // namespace
}  // namespace deepinfer::test
