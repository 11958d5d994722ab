// Norms, hyper-connections, rotation, Engram gate and the vector exponential against the reference.

#include <tuple>
#include <utility>

#include "base/det_math.h"
#include "kernels/cpu/levels.h"
#include "unit/kernels/simulated_levels.h"

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
      ForEachLevel(4, [&](Operators& ops) {
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
          ForEachLevel(3, [&](Operators& ops) {
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
      ForEachLevel(3, [&](Operators& ops) {
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
      ForEachLevel(3, [&](Operators& ops) {
        std::vector<float> y = h;
        ops.EngramGate(kRows, y.data(), kvv.data(), q.data(), k.data(), is_image, shape, rounding);
        EXPECT_TRUE(SameBits(y, expected)) << dim;
      });
    }
  }
}

TEST_F(RowKernelsTest, CompressPair) {
  for (int64_t n : {1, 16, 37, 512}) {
    constexpr int64_t kRows = 9;
    const int64_t stride = 2 * n + 3;
    const std::vector<float> kv = RandomFloats(kRows * stride, 20);
    std::vector<float> gates = RandomFloats(kRows * stride, 21);
    gates[0] = 300.0f;
    gates[static_cast<size_t>(stride)] = NAN;
    for (Rounding rounding : {Rounding::kNone, Rounding::kBf16}) {
      const auto run = [&](Operators& ops) {
        std::vector<float> latent(static_cast<size_t>(kRows * n));
        ops.CompressPair(kRows, kv.data(), gates.data(), kv.data() + n, gates.data() + n, n, stride,
                         rounding, latent.data());
        return latent;
      };
      const std::vector<float> expected = run(*reference_);
      ForEachLevel(3, [&](Operators& ops) { EXPECT_TRUE(SameBits(run(ops), expected)) << n; });
    }
  }
}

TEST_F(RowKernelsTest, EmbeddingAndMeanOfCopies) {
  constexpr int64_t kRows = 11, kDim = 3000;
  const std::vector<uint16_t> table = RandomBf16(7 * kDim, 22);
  const std::vector<int32_t> ids = {0, 6, 3, 3, 1, 2, 5, 4, 0, 6, 6};
  HcShape shape;
  shape.num_copies = 3;
  shape.dim = kDim;
  const auto run = [&](Operators& ops) {
    std::vector<float> x(kRows * kDim), h(3 * x.size()), mean(kRows * (kDim + 1));
    ops.Embed(kRows, ids.data(), table.data(), kDim, x.data());
    ops.Replicate(kRows, x.data(), 3, kDim, h.data());
    ops.Scale(static_cast<int64_t>(h.size()), 0.37f, h.data());
    ops.HcMean(kRows, h.data(), shape, Rounding::kBf16, mean.data(), kDim + 1);
    return std::vector<std::vector<float>>{x, h, mean};
  };
  const auto expected = run(*reference_);
  ForEachLevel(3, [&](Operators& ops) { EXPECT_EQ(run(ops), expected); });
}

TEST_F(RowKernelsTest, StoredRows) {
  constexpr int64_t kRows = 23, kDim = 512, kPerBlock = 4, kPageBytes = 40000;
  const std::vector<float> x = RandomFloats(kRows * kDim, 23);
  const std::vector<int32_t> blocks = {6, 2, 1, 0, 5, 4, 3};
  for (KvFormat format : {KvFormat::kQuantized, KvFormat::kFloat32}) {
    const auto run = [&](Operators& ops) {
      std::vector<std::byte> window(static_cast<size_t>(kRows * WindowRowBytes(format, kDim)));
      std::vector<std::byte> pool(blocks.size() * kPageBytes);
      KvPages pages;
      pages.pool = pool.data();
      pages.block_stride = kPageBytes;
      pages.block_table = blocks.data();
      pages.entries_per_block = kPerBlock;
      pages.main_row_bytes = CompressedRowBytes(format, kDim);
      pages.index_code_offset = kPerBlock * pages.main_row_bytes;
      pages.index_code_bytes = IndexCodeBytes(format, kDim);
      pages.index_scale_bytes = IndexScaleBytes(format, kDim);
      pages.index_scale_offset = pages.index_code_offset + kPerBlock * pages.index_code_bytes;
      ops.StoreWindowRows(kRows, x.data(), kDim, format, window.data());
      ops.StoreCompressed(kRows, x.data(), kDim, format, true, 3, pages);
      ops.StoreIndexKeys(kRows, x.data(), kDim, format, 3, pages);
      std::vector<float> rounded = x;
      ops.QdqFp4Group32(kRows, rounded.data(), kDim);
      pool.insert(pool.end(), window.begin(), window.end());
      return std::pair{pool, rounded};
    };
    const auto expected = run(*reference_);
    ForEachLevel(3, [&](Operators& ops) { EXPECT_EQ(run(ops), expected); });
  }
}

TEST_F(RowKernelsTest, RouteAndEngramRows) {
  constexpr int64_t kRows = 40, kTableRows = 50;
  constexpr int32_t kExperts = 64, kTopk = 6, kColumns = 24;
  const std::vector<float> logits = RandomFloats(kRows * kExperts, 24);
  const std::vector<float> bias = RandomFloats(2 * kExperts, 25);
  const OwnedWeight table(WeightFormat::kFp8Group32, kTableRows, 256, 26);
  Random random(27);
  std::vector<int64_t> ids(kRows * kColumns);
  for (int64_t& id : ids) id = random.Below(kTableRows);
  std::vector<uint8_t> is_image(kRows);
  for (uint8_t& image : is_image) image = static_cast<uint8_t>(random.Below(2));
  const auto run = [&](Operators& ops) {
    std::vector<int32_t> experts(kRows * kTopk);
    std::vector<float> weights(experts.size()), rows(ids.size() * 256);
    std::vector<uint8_t> codes(rows.size()), scales(rows.size() / 32);
    ops.Route(kRows, logits.data(), bias.data(), bias.data() + kExperts, is_image.data(), kExperts,
              kTopk, 1.0f, 1.5f, experts.data(), weights.data());
    ops.EngramGather(kRows, ids.data(), kColumns, table.matrix, rows.data());
    ops.EngramGatherFp8(kRows, ids.data(), kColumns, table.matrix, {codes.data(), scales.data()});
    codes.insert(codes.end(), scales.begin(), scales.end());
    rows.insert(rows.end(), weights.begin(), weights.end());
    return std::tuple{experts, codes, rows};
  };
  const auto expected = run(*reference_);
  ForEachLevel(3, [&](Operators& ops) {
    const auto actual = run(ops);
    EXPECT_EQ(std::get<0>(actual), std::get<0>(expected));
    EXPECT_EQ(std::get<1>(actual), std::get<1>(expected));
    // The table holds NaN codes.
    EXPECT_TRUE(SameBits(std::get<2>(actual), std::get<2>(expected)));
  });
}

TEST_F(RowKernelsTest, BlockMaximaSeeEveryPlace) {
  for (int64_t cols : {1, 8, 31, 32, 33, 64, 95, 4100}) {
    std::vector<float> x = RandomFloats(3 * cols, 40);
    for (int64_t at = 0; at < cols; at += std::max<int64_t>(1, cols / 37)) {
      for (float value : {100.0f, NAN, INFINITY, -INFINITY}) {
        const float kept = std::exchange(x[static_cast<size_t>(cols + at)], value);
        std::vector<float> expected(static_cast<size_t>(3 * NumMaxima(cols)));
        MakeReferenceOperators()->BlockMaxima(3, x.data(), cols, expected.data());
        const float most = expected[static_cast<size_t>(NumMaxima(cols) + at / kMaximaBlock)];
        EXPECT_TRUE(value == 100.0f ? most == value : std::isnan(most)) << at << " " << value;
        ForEachLevel(1, [&](Operators& ops) {
          std::vector<float> maxima(expected.size(), -1.0f);
          ops.BlockMaxima(3, x.data(), cols, maxima.data());
          EXPECT_TRUE(SameBits(maxima, expected)) << cols << " " << at << " " << value;
        });
        x[static_cast<size_t>(cols + at)] = kept;
      }
    }
  }
}

TEST_F(RowKernelsTest, FiniteChecksFindEveryPlace) {
  constexpr int64_t kCount = 70001;
  std::vector<float> x = RandomFloats(kCount, 28);
  x[5] = 1e-45f;
  x[6] = -0.0f;
  x[7] = 3.4e38f;
  ForEachLevel(3, [&](Operators& ops) {
    EXPECT_TRUE(ops.AllFinite(kCount, x.data()));
    EXPECT_TRUE(ops.ScoresFinite(kCount, x.data()));
    EXPECT_TRUE(ops.AllFinite(0, nullptr));
    for (int64_t at : {int64_t{0}, int64_t{8}, int64_t{32768}, kCount - 1}) {
      for (float bad : {NAN, INFINITY, -INFINITY}) {
        const float kept = std::exchange(x[static_cast<size_t>(at)], bad);
        EXPECT_FALSE(ops.AllFinite(kCount, x.data())) << at << " " << bad;
        EXPECT_EQ(ops.ScoresFinite(kCount, x.data()), bad == -INFINITY) << at << " " << bad;
        x[static_cast<size_t>(at)] = kept;
      }
    }
  });
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
