// Index scores and selections of every level against the reference, bit for bit.

#include <algorithm>
#include <limits>

#include "unit/kernels/simulated_levels.h"

namespace deepinfer::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// Index keys of one sequence in pages of five entries, in reversed order.
class KeyPages {
 public:
  KeyPages(int32_t entries, int32_t dim, const std::vector<float>& keys) {
    constexpr int32_t kPerBlock = 5;
    const int32_t blocks = (entries + kPerBlock - 1) / kPerBlock;
    for (int32_t b = 0; b < blocks; ++b) table_.push_back(blocks - 1 - b);
    pages_.entries_per_block = kPerBlock;
    pages_.index_code_bytes = IndexCodeBytes(KvFormat::kQuantized, dim);
    pages_.index_scale_bytes = IndexScaleBytes(KvFormat::kQuantized, dim);
    pages_.index_scale_offset = kPerBlock * pages_.index_code_bytes;
    pages_.block_stride = pages_.index_scale_offset + kPerBlock * pages_.index_scale_bytes + 3;
    pool_.resize(static_cast<size_t>(blocks * pages_.block_stride));
    pages_.pool = pool_.data();
    pages_.block_table = table_.data();
    MakeReferenceOperators()->StoreIndexKeys(entries, keys.data(), dim, KvFormat::kQuantized, 0,
                                             pages_);
  }
  KeyPages(const KeyPages&) = delete;

  const KvPages& pages() const { return pages_; }

 private:
  std::vector<int32_t> table_;
  std::vector<std::byte> pool_;
  KvPages pages_;
};

// Values whose groups of 32 differ by up to 2^spread in magnitude.
std::vector<float> GroupedFloats(int64_t n, int spread, uint64_t seed) {
  std::vector<float> x = RandomFloats(n, seed);
  Random random(seed + 1);
  for (int64_t g = 0; g < n / 32; ++g) {
    const int exponent = static_cast<int>(random.Below(spread + 1));
    for (int64_t i = 0; i < 32; ++i) {
      float& v = x[static_cast<size_t>(32 * g + i)];
      v = std::ldexp(v, exponent);
    }
  }
  return x;
}

class IndexerTest : public ::testing::Test {
 protected:
  void CheckScores(int32_t heads, int32_t dim, const std::vector<float>& keys, std::vector<float> q,
                   bool on_grid) {
    const int32_t entries = static_cast<int32_t>(static_cast<int64_t>(keys.size()) / dim);
    const KeyPages cache(entries, dim, keys);
    const int64_t num_rows = static_cast<int64_t>(q.size()) / (heads * dim);
    if (on_grid) reference_->QdqFp4Group32(num_rows * heads, q.data(), dim);
    IndexShape shape;
    shape.num_heads = heads;
    shape.head_dim = dim;
    shape.candidate_block_size = 8;
    const std::vector<int32_t> blocks = {0, 2, 3, 7, 11, 12, 15};
    const int32_t num_blocks = static_cast<int32_t>(blocks.size());
    std::vector<IndexRow> rows;
    for (int64_t t = 0; t < num_rows; ++t) {
      IndexRow row;
      row.pages = cache.pages();
      row.num_visible = t == 0 ? 0 : entries - static_cast<int32_t>(t) * 3;
      if (t % 3 == 2) row.candidate_blocks = blocks.data();
      if (t % 3 == 2) row.num_candidate_blocks = &num_blocks;
      rows.push_back(row);
    }
    const int64_t stride = entries + 3;
    const std::vector<float> w = RandomFloats(num_rows * heads, 9);
    std::vector<float> expected(static_cast<size_t>(num_rows * stride));
    reference_->IndexScores(rows, q.data(), w.data(), shape, stride, expected.data());
    ForEachLevel(3, [&](Operators& ops) {
      std::vector<float> scores(expected.size(), 3.0f);
      ops.IndexScores(rows, q.data(), w.data(), shape, stride, scores.data());
      EXPECT_TRUE(SameBits(scores, expected)) << heads << " heads x " << dim;
    });
  }

  // Rows of different lengths with the given scores.
  void CheckSelection(const std::vector<int32_t>& visible, const std::vector<float>& scores,
                      int64_t stride, int32_t block_size, int32_t topk, int32_t topk_blocks) {
    IndexShape shape;
    shape.candidate_block_size = block_size;
    shape.topk = topk;
    shape.candidate_topk_blocks = topk_blocks;
    std::vector<IndexRow> rows(visible.size());
    for (size_t t = 0; t < rows.size(); ++t) rows[t].num_visible = visible[t];
    const auto run = [&](Operators& ops) {
      std::vector<int32_t> indices(rows.size() * static_cast<size_t>(topk), -7);
      std::vector<int32_t> blocks(rows.size() * static_cast<size_t>(topk_blocks), -7);
      std::vector<int32_t> num_indices(rows.size(), -7), num_blocks(rows.size(), -7);
      ops.SelectTopK(rows, scores.data(), stride, shape, indices.data(), num_indices.data());
      ops.SelectCandidates(rows, scores.data(), stride, shape, blocks.data(), num_blocks.data());
      return std::vector<std::vector<int32_t>>{indices, num_indices, blocks, num_blocks};
    };
    const auto expected = run(*reference_);
    ForEachLevel(3, [&](Operators& ops) { EXPECT_EQ(run(ops), expected); });
  }

  std::unique_ptr<Operators> reference_ = MakeReferenceOperators();
};

TEST_F(IndexerTest, ScoresOfUsualKeys) {
  for (int32_t heads : {1, 4, 8, 15, 16, 32, 64}) {
    for (int32_t dim : {32, 64, 128}) {
      CheckScores(heads, dim, GroupedFloats(131 * dim, 0, 1), RandomFloats(5 * heads * dim, 2),
                  true);
    }
  }
}

TEST_F(IndexerTest, ScoresOfKeysNearAndBeyondExactSums) {
  for (int spread : {3, 8, 9, 10, 12, 30}) {
    CheckScores(17, 128, GroupedFloats(131 * 128, spread, 3), GroupedFloats(4 * 17 * 128, 0, 4),
                true);
    CheckScores(17, 128, GroupedFloats(131 * 128, 0, 5), GroupedFloats(4 * 17 * 128, spread, 6),
                true);
  }
}

TEST_F(IndexerTest, ScoresOfZeroHugeAndUnquantisedQueries) {
  const std::vector<float> keys = RandomFloats(131 * 64, 7);
  std::vector<float> q = RandomFloats(6 * 8 * 64, 8);
  std::fill_n(q.begin(), 8 * 64 + 32, 0.0f);
  for (int i = 0; i < 32; ++i) q[static_cast<size_t>(2 * 8 * 64 + i)] *= 0x1p100f;
  for (int i = 0; i < 32; ++i) q[static_cast<size_t>(3 * 8 * 64 + i)] *= 0x1p-100f;
  CheckScores(8, 64, keys, q, true);
  CheckScores(8, 64, keys, q, false);
  q[4 * 8 * 64] = NAN;
  CheckScores(8, 64, keys, q, false);
}

TEST_F(IndexerTest, SelectionWithTiesInfinitiesAndNan) {
  constexpr int64_t kStride = 6000;
  const std::vector<int32_t> visible = {0, 1, 7, 8, 9, 40, 500, 4095, 5999, 6000};
  for (int kind = 0; kind < 5; ++kind) {
    std::vector<float> scores = RandomFloats(static_cast<int64_t>(visible.size()) * kStride, 10);
    Random random(11);
    for (float& s : scores) {
      if (kind == 1) s = static_cast<float>(random.Below(3)) - 1.0f;  // nearly all are ties
      if (kind == 2 && random.Below(3) > 0) s = -kInf;
      if (kind == 3) s = random.Below(5) == 0 ? NAN : (random.Below(2) == 0 ? 0.0f : -0.0f);
      if (kind == 4) s = -kInf;
    }
    CheckSelection(visible, scores, kStride, 8, 16, 4);
    CheckSelection(visible, scores, kStride, 8, 512, 100);
    CheckSelection(visible, scores, kStride, 3, 1, 1);
  }
}

// Every score is better than all before, so that the list of the best is cut again and again; and
// the row is long enough to be split over threads.
TEST_F(IndexerTest, SelectionOfLongMonotonicRows) {
  constexpr int64_t kCount = 300001;
  for (bool is_rising : {true, false}) {
    std::vector<float> scores(static_cast<size_t>(kCount));
    for (int64_t i = 0; i < kCount; ++i) {
      const float rank = static_cast<float>((is_rising ? i : kCount - i) / 2);
      scores[static_cast<size_t>(i)] = rank - 1000.0f;
    }
    CheckSelection({static_cast<int32_t>(kCount)}, scores, kCount, 8, 512, 2048);
  }
}

}  // namespace
}  // namespace deepinfer::test
