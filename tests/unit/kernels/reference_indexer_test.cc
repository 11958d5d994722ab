// Index scores, candidate blocks, top-k and compressor pooling (model.md §7, §8, §16).

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "golden/golden_file.h"
#include "kernels/backends.h"
#include "tensor/quantize.h"
#include "unit/kernels/kernel_test_data.h"

namespace deepinfer {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

IndexShape Shape(int32_t heads, int32_t dim, int32_t topk) {
  IndexShape s;
  s.format = KvFormat::kFloat32;
  s.num_heads = heads;
  s.head_dim = dim;
  s.candidate_block_size = 4;
  s.topk = topk;
  s.candidate_topk_blocks = 8;
  return s;
}

// Keys whose first channel is the wanted score: two heads with opposite queries and weights pass
// it through the relu unchanged.
class ScoreRow {
 public:
  ScoreRow(const float* scores, int64_t count) : pages_(count, 16, 16) {
    for (int64_t j = 0; j < count; ++j) {
      std::vector<float> key(16, 0.0f);
      key[0] = scores[j];
      pages_.SetKey(j, key.data());
    }
  }
  const KvPages& pages() const { return pages_.pages(); }
  static std::vector<float> Query() {
    std::vector<float> q(32, 0.0f);
    q[0] = 1.0f;
    q[16] = -1.0f;
    return q;
  }
  static std::vector<float> Weights() { return {1.0f, -1.0f}; }

 private:
  FloatPages pages_;
};

std::vector<int32_t> Padded(const int32_t* list, int32_t count, size_t width) {
  std::vector<int32_t> out(list, list + count);
  out.resize(width, -1);
  return out;
}

TEST(ReferenceSelection, ManyExactTiesAreBrokenAsInTheGoldenLists) {
  const auto ops = MakeReferenceOperators();
  const GoldenFile golden("unit_vectors2");
  const std::vector<float> first = golden.Floats("tie_scores"),
                           second = golden.Floats("tie_scores2");
  const std::vector<int32_t> want_topk = golden.Ints("tie_topk16"),
                             want_inside = golden.Ints("tie_topk16_in_candidates");
  const std::vector<uint8_t> want_mask = golden.Get<uint8_t>("tie_candidates_8x4");
  const IndexShape shape = Shape(2, 16, 16);
  const std::vector<float> q = ScoreRow::Query(), w = ScoreRow::Weights();
  for (int32_t t = 0; t < 48; ++t) {
    const ScoreRow keys(first.data() + t * 48, 48), keys2(second.data() + t * 48, 48);
    IndexRow row;
    row.pages = keys.pages();
    row.num_visible = t + 1;
    float scores[48];
    int32_t blocks[8], num_blocks = -1, list[16], count = -1;
    ops->IndexScores({&row, 1}, q.data(), w.data(), shape, 48, scores);
    for (int32_t j = 0; j < 48; ++j) {
      ASSERT_EQ(scores[j], j <= t ? first[static_cast<size_t>(t * 48 + j)] : -kInf) << t;
    }
    ops->SelectTopK({&row, 1}, scores, 48, shape, list, &count);
    const auto want = [t](const std::vector<int32_t>& all) {
      return std::vector<int32_t>(all.begin() + t * 16, all.begin() + (t + 1) * 16);
    };
    EXPECT_EQ(Padded(list, count, 16), want(want_topk)) << t;

    ops->SelectCandidates({&row, 1}, scores, 48, shape, blocks, &num_blocks);
    std::vector<uint8_t> mask(48, 0);
    for (int32_t i = 0; i < num_blocks; ++i) {
      std::fill_n(mask.begin() + blocks[i] * 4, 4, uint8_t{1});
      if (i > 0) {
        EXPECT_LT(blocks[i - 1], blocks[i]);
      }
    }
    // The golden mask marks whole blocks, visible or not.
    EXPECT_TRUE(std::equal(mask.begin(), mask.end(), want_mask.begin() + t * 48)) << t;

    IndexRow restricted = row;
    restricted.pages = keys2.pages();
    restricted.candidate_blocks = blocks;
    restricted.num_candidate_blocks = &num_blocks;
    ops->IndexScores({&restricted, 1}, q.data(), w.data(), shape, 48, scores);
    ops->SelectTopK({&restricted, 1}, scores, 48, shape, list, &count);
    EXPECT_EQ(Padded(list, count, 16), want(want_inside)) << t;
  }
}

TEST(ReferenceSelection, NothingVisibleSelectsNothing) {
  const auto ops = MakeReferenceOperators();
  IndexRow row;  // no pages at all
  const IndexShape shape = Shape(2, 16, 16);
  float score = 0;
  int32_t blocks[8], num_blocks = -1, list[16], count = -1;
  const std::vector<float> q = ScoreRow::Query(), w = ScoreRow::Weights();
  ops->IndexScores({&row, 1}, q.data(), w.data(), shape, 1, &score);
  EXPECT_EQ(score, -kInf);
  ops->SelectCandidates({&row, 1}, &score, 1, shape, blocks, &num_blocks);
  ops->SelectTopK({&row, 1}, &score, 1, shape, list, &count);
  EXPECT_EQ(num_blocks, 0);
  EXPECT_EQ(count, 0);
}

TEST(ReferenceSelection, NanAndMinusInfinityAreNeverTaken) {
  const auto ops = MakeReferenceOperators();
  const float scores[] = {NAN, 1.0f, -kInf, 1.0f, -3e38f, NAN, 2.0f, 0.0f, NAN, NAN};
  IndexRow row;
  row.num_visible = 10;
  IndexShape shape = Shape(1, 16, 4);
  shape.candidate_block_size = 2;
  int32_t list[8], count = -1;
  ops->SelectTopK({&row, 1}, scores, 10, shape, list, &count);
  EXPECT_EQ(std::vector<int32_t>(list, list + count), (std::vector<int32_t>{1, 3, 6, 7}));
  shape.topk = 8;
  ops->SelectTopK({&row, 1}, scores, 10, shape, list, &count);
  EXPECT_EQ(std::vector<int32_t>(list, list + count), (std::vector<int32_t>{1, 3, 4, 6, 7}));
  // Blocks {0,1} {2,3} {4,5} {6,7}; the newest {8,9} is pinned even without a number in it.
  int32_t blocks[8], num_blocks = -1;
  ops->SelectCandidates({&row, 1}, scores, 10, shape, blocks, &num_blocks);
  EXPECT_EQ(std::vector<int32_t>(blocks, blocks + num_blocks),
            (std::vector<int32_t>{0, 1, 2, 3, 4}));
  shape.candidate_topk_blocks = 2;
  ops->SelectCandidates({&row, 1}, scores, 10, shape, blocks, &num_blocks);
  EXPECT_EQ(std::vector<int32_t>(blocks, blocks + num_blocks), (std::vector<int32_t>{3, 4}));
}

TEST(ReferenceSelection, DamagedScoresAreFoundAndUnscoredEntriesAreNot) {
  const auto ops = MakeReferenceOperators();
  const float good[] = {-kInf, 0.0f, -3e38f, 3e38f};
  EXPECT_TRUE(ops->ScoresFinite(4, good));
  EXPECT_TRUE(ops->ScoresFinite(0, nullptr));
  for (const float bad : {NAN, -NAN, kInf}) {
    const float scores[] = {-kInf, bad, 1.0f};
    EXPECT_FALSE(ops->ScoresFinite(3, scores)) << bad;
  }
}

TEST(ReferenceIndexScores, EqualAnFp64LoopAndDropNegativeDots) {
  const auto ops = MakeReferenceOperators();
  constexpr int32_t kHeads = 5, kDim = 32, kEntries = 37;
  const std::vector<float> keys = RandomFloats(kEntries * kDim, 31),
                           q = RandomFloats(2 * kHeads * kDim, 32),
                           w = RandomFloats(2 * kHeads, 33);
  FloatPages pages(kEntries, 16, kDim);
  for (int64_t j = 0; j < kEntries; ++j) pages.SetKey(j, keys.data() + j * kDim);
  std::vector<IndexRow> rows(2);
  for (IndexRow& r : rows) r.pages = pages.pages();
  rows[0].num_visible = kEntries;
  rows[1].num_visible = 10;
  const int32_t blocks[] = {0, 2}, num_blocks = 2;
  rows[1].candidate_blocks = blocks;
  rows[1].num_candidate_blocks = &num_blocks;
  std::vector<float> scores(2 * 40, NAN);
  ops->IndexScores(rows, q.data(), w.data(), Shape(kHeads, kDim, 4), 40, scores.data());
  for (int32_t t = 0; t < 2; ++t) {
    for (int32_t j = 0; j < 40; ++j) {
      const bool scored = t == 0 ? j < kEntries : j < 4 || (j >= 8 && j < 10);
      const float got = scores[static_cast<size_t>(t * 40 + j)];
      if (!scored) {
        EXPECT_EQ(got, -kInf) << t << " " << j;
        continue;
      }
      double want = 0;
      for (int32_t head = 0; head < kHeads; ++head) {
        double dot = 0;
        for (int32_t c = 0; c < kDim; ++c) {
          dot += double{q[static_cast<size_t>((t * kHeads + head) * kDim + c)]} *
                 keys[static_cast<size_t>(j * kDim + c)];
        }
        want += std::max(dot, 0.0) * w[static_cast<size_t>(t * kHeads + head)];
      }
      EXPECT_NEAR(got, want, 2e-5) << t << " " << j;
    }
  }
}

TEST(ReferenceIndexScores, ANanKeySpoilsItsOwnEntryOnly) {
  const auto ops = MakeReferenceOperators();
  const float values[] = {1.0f, NAN, 3.0f};
  const ScoreRow keys(values, 3);
  IndexRow row;
  row.pages = keys.pages();
  row.num_visible = 3;
  float scores[3];
  ops->IndexScores({&row, 1}, ScoreRow::Query().data(), ScoreRow::Weights().data(), Shape(2, 16, 4),
                   3, scores);
  EXPECT_EQ(scores[0], 1.0f);
  EXPECT_TRUE(std::isnan(scores[1]));
  EXPECT_EQ(scores[2], 3.0f);
}

TEST(ReferenceIndexKeys, StoredFormIsCodesThenScalesPerPage) {
  const auto ops = MakeReferenceOperators();
  constexpr int64_t kDim = 64;
  KvPages pages;
  pages.entries_per_block = 4;
  pages.index_code_bytes = IndexCodeBytes(KvFormat::kQuantized, kDim);
  pages.index_scale_bytes = IndexScaleBytes(KvFormat::kQuantized, kDim);
  pages.index_scale_offset = 4 * pages.index_code_bytes;
  pages.block_stride = pages.index_scale_offset + 4 * pages.index_scale_bytes;
  const int32_t table[] = {2, 0};
  std::vector<std::byte> pool(static_cast<size_t>(3 * pages.block_stride), std::byte{0xAA});
  pages.pool = pool.data();
  pages.block_table = table;
  const std::vector<float> x = RandomFloats(3 * kDim, 41);
  ops->StoreIndexKeys(3, x.data(), kDim, KvFormat::kQuantized, 3, pages);
  for (int64_t t = 0; t < 3; ++t) {
    std::vector<uint8_t> codes(kDim / 2), scales(kDim / 32);
    QuantizeFp4Group32(x.data() + t * kDim, kDim, codes.data(), scales.data());
    EXPECT_EQ(std::memcmp(pages.IndexCodes(3 + t), codes.data(), codes.size()), 0) << t;
    EXPECT_EQ(std::memcmp(pages.IndexScales(3 + t), scales.data(), scales.size()), 0) << t;
  }
  // Page 1 belongs to nobody here, and entries 0..2 were not written.
  for (int64_t i = 0; i < pages.block_stride; ++i) {
    ASSERT_EQ(pool[static_cast<size_t>(pages.block_stride + i)], std::byte{0xAA}) << i;
  }
  for (int64_t i = 0; i < 3 * pages.index_code_bytes; ++i) {
    ASSERT_EQ(pages.IndexCodes(0)[i], std::byte{0xAA}) << i;
  }
}

TEST(ReferenceCompressor, PoolsTwoRowsWithASoftmaxPerChannel) {
  const auto ops = MakeReferenceOperators();
  constexpr int64_t kDim = 32, kStride = 2 * kDim;
  std::vector<float> kv = RandomFloats(6 * kDim, 51), gate = RandomFloats(6 * kDim, 52, 3.0f);
  gate[0] = 200.0f;  // far apart gates must not overflow
  gate[kDim] = -200.0f;
  std::vector<float> latent(3 * kDim);
  ops->CompressPair(3, kv.data(), gate.data(), kv.data() + kDim, gate.data() + kDim, kDim, kStride,
                    Rounding::kNone, latent.data());
  for (int64_t t = 0; t < 3; ++t) {
    for (int64_t c = 0; c < kDim; ++c) {
      const double g0 = gate[static_cast<size_t>(t * kStride + c)],
                   g1 = gate[static_cast<size_t>(t * kStride + kDim + c)];
      const double w0 = 1 / (1 + std::exp(g1 - g0));
      const double want = w0 * kv[static_cast<size_t>(t * kStride + c)] +
                          (1 - w0) * kv[static_cast<size_t>(t * kStride + kDim + c)];
      EXPECT_NEAR(latent[static_cast<size_t>(t * kDim + c)], want, 1e-6);
    }
  }
  EXPECT_EQ(latent[0], kv[0]);
}

}  // namespace
}  // namespace deepinfer
