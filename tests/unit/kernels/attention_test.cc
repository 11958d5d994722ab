// Attention and index scores of every level against the reference, bit for bit.

#include <algorithm>
#include <numeric>

#include "unit/kernels/simulated_levels.h"

namespace deepinfer::test {
namespace {

constexpr int32_t kEntriesPerBlock = 7;

// One sequence: a ring, the rows of the running step and pages in shuffled order.
class Cache {
 public:
  Cache(KvFormat format, int32_t head_dim, int32_t index_dim, int32_t step_start, int32_t step_rows,
        int32_t entries, uint64_t seed)
      : ops_(MakeReferenceOperators()) {
    window_.ring_rows = 134;
    window_.step_start = step_start;
    window_.row_bytes = WindowRowBytes(format, head_dim);
    ring_.resize(static_cast<size_t>(window_.ring_rows * window_.row_bytes));
    step_.resize(static_cast<size_t>(step_rows * window_.row_bytes));
    const int64_t history = std::min(step_start, window_.ring_rows);
    std::vector<std::byte> rows(static_cast<size_t>(history * window_.row_bytes));
    ops_->StoreWindowRows(history, RandomFloats(history * head_dim, seed).data(), head_dim, format,
                          rows.data());
    ops_->WriteRing(history, rows.data(), window_.row_bytes, step_start - history,
                    window_.ring_rows, ring_.data());
    ops_->StoreWindowRows(step_rows, RandomFloats(step_rows * head_dim, seed + 1).data(), head_dim,
                          format, step_.data());
    window_.ring = ring_.data();
    window_.step_rows = step_.data();

    const int32_t blocks = (entries + kEntriesPerBlock - 1) / kEntriesPerBlock;
    for (int32_t b = 0; b < blocks; ++b) table_.push_back(blocks - 1 - b);
    pages_.entries_per_block = kEntriesPerBlock;
    pages_.main_row_bytes = CompressedRowBytes(format, head_dim);
    pages_.index_code_bytes = IndexCodeBytes(format, index_dim);
    pages_.index_scale_bytes = IndexScaleBytes(format, index_dim);
    pages_.index_code_offset = kEntriesPerBlock * pages_.main_row_bytes;
    pages_.index_scale_offset =
        pages_.index_code_offset + kEntriesPerBlock * pages_.index_code_bytes;
    pages_.block_stride =
        pages_.index_scale_offset + kEntriesPerBlock * pages_.index_scale_bytes + 12;
    pool_.resize(static_cast<size_t>(blocks * pages_.block_stride));
    pages_.pool = pool_.data();
    pages_.block_table = table_.data();
    ops_->StoreCompressed(entries, RandomFloats(int64_t{entries} * head_dim, seed + 2).data(),
                          head_dim, format, false, 0, pages_);
    ops_->StoreIndexKeys(entries, RandomFloats(int64_t{entries} * index_dim, seed + 3).data(),
                         index_dim, format, 0, pages_);
  }

  const WindowRows& window() const { return window_; }
  const KvPages& pages() const { return pages_; }

 private:
  std::unique_ptr<Operators> ops_;
  std::vector<std::byte> ring_, step_, pool_;
  std::vector<int32_t> table_;
  WindowRows window_;
  KvPages pages_;
};

class AttentionTest : public ::testing::Test {
 protected:
  void CheckAttention(KvFormat format, int32_t heads, int32_t head_dim, int max_threads,
                      Rounding weights = Rounding::kNone) {
    constexpr int32_t kStart = 150, kStep = 6, kEntries = 200;
    const Cache cache(format, head_dim, 32, kStart, kStep, kEntries, 1);
    std::vector<int32_t> selected;
    for (int32_t j = 0; j < kEntries; j += 1 + j % 3) selected.push_back(j);
    std::vector<int32_t> others = selected;  // the same up to the middle of the second tile
    for (size_t i = 80; i < others.size(); ++i) others[i] = std::min(others[i] + 1, kEntries - 1);
    std::vector<AttentionRow> rows;
    std::vector<int32_t> counts = {0, 1, 15, 16, 63, 64, 65, 95, 95, 90};
    for (size_t i = 0; i < counts.size(); ++i) {
      AttentionRow row;
      row.window = cache.window();
      row.position = kStart + static_cast<int32_t>(i) % kStep;
      row.window_lo = i == 0 ? row.position + 1 : row.position - (i == 3 ? 0 : 127);
      if (i != 2) {
        row.pages = cache.pages();
        row.selected = (i == 8 ? others : selected).data();
        row.num_selected = &counts[i];
      }
      rows.push_back(row);
    }
    AttentionShape shape;
    shape.format = format;
    shape.num_heads = heads;
    shape.head_dim = head_dim;
    shape.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
    shape.weights = weights;
    const int64_t width = int64_t{heads} * head_dim;
    std::vector<float> q = RandomFloats(static_cast<int64_t>(rows.size()) * width, 5);
    for (size_t i = static_cast<size_t>(4 * width); i < static_cast<size_t>(5 * width); ++i) {
      q[i] *= 200.0f;  // a row whose softmax is all on one key
    }
    if (weights == Rounding::kBf16) RoundToBf16InPlace(&q);
    const std::vector<float> sink = RandomFloats(heads, 6);
    std::vector<float> expected(q.size());
    reference_->Attention(rows, q.data(), sink.data(), shape, expected.data());
    EXPECT_TRUE(
        std::all_of(expected.begin(), expected.begin() + width, [](float x) { return x == 0.0f; }));
    ForEachLevel(max_threads, [&](Operators& ops) {
      std::vector<float> o(q.size(), 7.0f);
      ops.Attention(rows, q.data(), sink.data(), shape, o.data());
      EXPECT_TRUE(SameBits(o, expected)) << heads << " heads x " << head_dim;
      // One row alone is the decode shape.
      for (size_t t : {size_t{0}, rows.size() - 1}) {
        const size_t offset = t * static_cast<size_t>(width);
        ops.Attention({&rows[t], 1}, q.data() + offset, sink.data(), shape, o.data());
        EXPECT_TRUE(SameBits(o.data(), expected.data() + offset, width)) << "row " << t;
      }
      ops.Attention({}, nullptr, sink.data(), shape, nullptr);
    });
  }

  void CheckIndex(KvFormat format, int32_t heads, int32_t dim, int max_threads) {
    constexpr int32_t kEntries = 190;
    const Cache cache(format, 32, dim, 0, 0, kEntries, 7);
    IndexShape shape;
    shape.format = format;
    shape.num_heads = heads;
    shape.head_dim = dim;
    shape.candidate_block_size = 8;
    const std::vector<int32_t> blocks = {0, 3, 4, 9, 10, 11, 13, 14, 17, 20, 23};
    const int32_t num_blocks = static_cast<int32_t>(blocks.size()), no_blocks = 0;
    std::vector<IndexRow> rows;
    for (int32_t visible : {0, 1, 63, 64, 65, 190}) {
      for (int kind = 0; kind < 3; ++kind) {
        IndexRow row;
        row.pages = cache.pages();
        row.num_visible = visible;
        if (kind > 0) row.candidate_blocks = blocks.data();
        if (kind > 0) row.num_candidate_blocks = kind == 1 ? &num_blocks : &no_blocks;
        rows.push_back(row);
      }
    }
    const int64_t count = static_cast<int64_t>(rows.size());
    constexpr int64_t kStride = 197;
    const std::vector<float> q = RandomFloats(count * heads * dim, 8);
    const std::vector<float> w = RandomFloats(count * heads, 9);
    std::vector<float> expected(static_cast<size_t>(count * kStride));
    reference_->IndexScores(rows, q.data(), w.data(), shape, kStride, expected.data());
    ForEachLevel(max_threads, [&](Operators& ops) {
      std::vector<float> scores(expected.size(), 3.0f);
      ops.IndexScores(rows, q.data(), w.data(), shape, kStride, scores.data());
      EXPECT_TRUE(SameBits(scores, expected)) << heads << " heads x " << dim;
    });
  }

  std::unique_ptr<Operators> reference_ = MakeReferenceOperators();
};

TEST_F(AttentionTest, QuantizedCache) {
  CheckAttention(KvFormat::kQuantized, 4, 64, 4);
  CheckAttention(KvFormat::kQuantized, 19, 96, 2);
  CheckAttention(KvFormat::kQuantized, 16, 512, 2);
}

TEST_F(AttentionTest, QuantizedCacheInBf16) {
  CheckAttention(KvFormat::kQuantized, 4, 64, 4, Rounding::kBf16);
  CheckAttention(KvFormat::kQuantized, 19, 96, 2, Rounding::kBf16);
  CheckAttention(KvFormat::kQuantized, 3, 160, 2, Rounding::kBf16);
  CheckAttention(KvFormat::kQuantized, 16, 512, 2, Rounding::kBf16);
  CheckAttention(KvFormat::kQuantized, 64, 128, 3, Rounding::kBf16);
}

TEST_F(AttentionTest, Fp32Cache) {
  CheckAttention(KvFormat::kFloat32, 4, 64, 2);
  CheckAttention(KvFormat::kFloat32, 4, 64, 2, Rounding::kBf16);
  CheckAttention(KvFormat::kFloat32, 5, 39, 2);  // neither fills a block
}

TEST_F(AttentionTest, IndexScores) {
  CheckIndex(KvFormat::kQuantized, 16, 32, 4);
  CheckIndex(KvFormat::kQuantized, 32, 128, 2);
  CheckIndex(KvFormat::kQuantized, 3, 64, 1);
  CheckIndex(KvFormat::kFloat32, 5, 32, 2);
}

}  // namespace
}  // namespace deepinfer::test
