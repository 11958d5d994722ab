// Rotation and attention against golden vectors and fp64 loops (model.md §6).

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "golden/golden_file.h"
#include "kernels/backends.h"
#include "tensor/quantize.h"
#include "unit/kernels/kernel_test_data.h"

namespace deepinfer {
namespace {

constexpr double kLimit = 5e-6;  // numerics.md §3

// Softmax over the keys and the sink in fp64; o [heads, d].
std::vector<double> PlainAttention(const std::vector<std::vector<float>>& keys, const float* q,
                                   const float* sink, int heads, int d, double scale) {
  std::vector<double> o(static_cast<size_t>(heads * d), 0.0);
  for (int head = 0; head < heads && !keys.empty(); ++head) {
    std::vector<double> s;
    for (const auto& key : keys) {
      double dot = 0;
      for (int c = 0; c < d; ++c) dot += double{q[head * d + c]} * key[static_cast<size_t>(c)];
      s.push_back(dot * scale);
    }
    const double max = *std::max_element(s.begin(), s.end());
    double sum = std::exp(double{sink[head]} - max);
    for (double v : s) sum += std::exp(v - max);
    for (size_t i = 0; i < keys.size(); ++i) {
      for (int c = 0; c < d; ++c) {
        o[static_cast<size_t>(head * d + c)] +=
            std::exp(s[i] - max) / sum * keys[i][static_cast<size_t>(c)];
      }
    }
  }
  return o;
}

TEST(ReferenceAttention, SparseKeysMatchTheGoldenRows) {
  const auto ops = MakeReferenceOperators();
  const GoldenFile golden("unit_vectors");
  const std::vector<float> kv = golden.Floats("sa_kv"), q = golden.Floats("sa_q"),
                           sink = golden.Floats("sa_sink"), want = golden.Floats("sa_out");
  const std::vector<int32_t> idx = golden.Ints("sa_idx");
  FloatPages pages(40, 64, 16);
  for (int64_t j = 0; j < 40; ++j) pages.SetMain(j, kv.data() + j * 64);
  std::vector<std::vector<int32_t>> lists(6);
  std::vector<int32_t> counts(6);
  std::vector<AttentionRow> rows(6);
  for (size_t t = 0; t < 6; ++t) {
    for (size_t i = 0; i < 90; ++i) {
      if (idx[t * 90 + i] >= 0) lists[t].push_back(idx[t * 90 + i]);
    }
    counts[t] = static_cast<int32_t>(lists[t].size());
    rows[t].window_lo = 1;  // no window key
    rows[t].pages = pages.pages();
    rows[t].selected = lists[t].data();
    rows[t].num_selected = &counts[t];
  }
  ASSERT_EQ(counts[0], 0);
  const AttentionShape shape{KvFormat::kFloat32, 4, 64, 0.125f};
  std::vector<float> o(q.size(), NAN);
  ops->Attention(rows, q.data(), sink.data(), shape, o.data());
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(o[i], want[i], kLimit) << i;
  for (size_t i = 0; i < 4 * 64; ++i) ASSERT_EQ(o[i], 0.0f) << "a query without keys";
}

// Window keys from ring and step, then selected entries, in stored form.
TEST(ReferenceAttention, WindowAndEntriesShareOneSoftmax) {
  const auto ops = MakeReferenceOperators();
  constexpr int kHeads = 2, kDim = 32;
  constexpr int32_t kRing = 70, kStart = 130, kRows = 9;
  const std::vector<float> kv = RandomFloats((kStart + kRows) * kDim, 11);
  const int64_t row_bytes = WindowRowBytes(KvFormat::kQuantized, kDim);
  std::vector<std::byte> stored(static_cast<size_t>((kStart + kRows) * row_bytes));
  ops->StoreWindowRows(kStart + kRows, kv.data(), kDim, KvFormat::kQuantized, stored.data());
  std::vector<float> qdq = kv;
  for (int64_t t = 0; t < kStart + kRows; ++t) Fp8Group32QdqInPlace(qdq.data() + t * kDim, kDim);
  std::vector<std::byte> ring(static_cast<size_t>(kRing * row_bytes), std::byte{0xFF});
  ops->WriteRing(kRing, stored.data() + (kStart - kRing) * row_bytes, row_bytes, kStart - kRing,
                 kRing, ring.data());

  // Entries in pages of the quantised form.
  constexpr int64_t kEntries = 100;
  const std::vector<float> entries = RandomFloats(kEntries * kDim, 12);
  std::vector<float> entries_qdq = entries;
  for (int64_t j = 0; j < kEntries; ++j) {
    Fp4Group16QdqInPlace(entries_qdq.data() + j * kDim, kDim, false);
  }
  KvPages pages;
  pages.entries_per_block = 64;
  pages.main_row_bytes = CompressedRowBytes(KvFormat::kQuantized, kDim);
  pages.block_stride = 64 * pages.main_row_bytes;
  const int32_t table[] = {1, 0};
  std::vector<std::byte> pool(static_cast<size_t>(2 * pages.block_stride), std::byte{0xFF});
  pages.pool = pool.data();
  pages.block_table = table;
  ops->StoreCompressed(kEntries, entries.data(), kDim, KvFormat::kQuantized, false, 0, pages);
  std::vector<int32_t> selected;
  for (int32_t j = 0; j < kEntries; j += j % 3 + 1) selected.push_back(j);
  const int32_t num_selected = static_cast<int32_t>(selected.size());

  const std::vector<float> q = RandomFloats(kRows * kHeads * kDim, 13), sink = {0.3f, -2.0f};
  std::vector<AttentionRow> rows(kRows);
  for (int32_t i = 0; i < kRows; ++i) {
    AttentionRow& r = rows[static_cast<size_t>(i)];
    r.window = {ring.data(), stored.data() + kStart * row_bytes, kRing, kStart, row_bytes};
    r.position = kStart + i;
    r.window_lo = r.position - 63;
    if (i % 2 == 0) {
      r.pages = pages;
      r.selected = selected.data();
      r.num_selected = &num_selected;
    }
  }
  const AttentionShape shape{KvFormat::kQuantized, kHeads, kDim, 1.0f / std::sqrt(32.0f)};
  std::vector<float> o(q.size(), NAN);
  ops->Attention(rows, q.data(), sink.data(), shape, o.data());
  for (int32_t i = 0; i < kRows; ++i) {
    std::vector<std::vector<float>> keys;
    for (int32_t p = kStart + i - 63; p <= kStart + i; ++p) {
      keys.emplace_back(qdq.begin() + p * kDim, qdq.begin() + (p + 1) * kDim);
    }
    for (int32_t j : selected) {
      if (i % 2 != 0) break;
      keys.emplace_back(entries_qdq.begin() + j * kDim, entries_qdq.begin() + (j + 1) * kDim);
    }
    const float* query = q.data() + i * kHeads * kDim;
    const std::vector<double> want =
        PlainAttention(keys, query, sink.data(), kHeads, kDim, 1 / std::sqrt(32.0));
    for (size_t c = 0; c < want.size(); ++c) {
      ASSERT_NEAR(o[static_cast<size_t>(i) * want.size() + c], want[c], kLimit) << i << " " << c;
    }
  }
}

TEST(ReferenceAttention, LargeScoresOverflowNothingAndNanStaysInItsRow) {
  const auto ops = MakeReferenceOperators();
  constexpr int kDim = 32;
  FloatPages pages(2, kDim, 16);
  std::vector<float> key(kDim, 1e4f);
  pages.SetMain(0, key.data());
  key.assign(kDim, -1e4f);
  pages.SetMain(1, key.data());
  std::vector<float> q(2 * kDim, 1e4f);
  q[kDim] = NAN;
  const int32_t selected[] = {0, 1}, count = 2;
  std::vector<AttentionRow> rows(2);
  for (AttentionRow& r : rows) {
    r.window_lo = 1;
    r.pages = pages.pages();
    r.selected = selected;
    r.num_selected = &count;
  }
  const float sink = 5.0f;
  std::vector<float> o(2 * kDim);
  ops->Attention(rows, q.data(), &sink, {KvFormat::kFloat32, 1, kDim, 1.0f}, o.data());
  for (int c = 0; c < kDim; ++c) {
    EXPECT_EQ(o[static_cast<size_t>(c)], 1e4f);
    EXPECT_TRUE(std::isnan(o[static_cast<size_t>(kDim + c)]));
  }
}

TEST(ReferenceRope, RotatesAdjacentPairsOfTheLastChannelsOnly) {
  const auto ops = MakeReferenceOperators();
  constexpr int32_t kHeads = 3, kDim = 10, kRotary = 4, kPositions = 8;
  std::vector<float> cos, sin;
  for (int32_t p = 0; p < kPositions; ++p) {
    for (int32_t i = 0; i < kRotary / 2; ++i) {
      cos.push_back(std::cos(0.3f * static_cast<float>(p * (i + 1))));
      sin.push_back(std::sin(0.3f * static_cast<float>(p * (i + 1))));
    }
  }
  const RopeTable table{cos.data(), sin.data(), kRotary, kPositions};
  const std::vector<float> x = RandomFloats(2 * kHeads * kDim, 21);
  const int32_t positions[] = {7, 2};
  std::vector<float> y = x;
  ops->Rope(2, y.data(), kHeads, kDim, positions, table, false, Rounding::kNone);
  for (int32_t t = 0; t < 2; ++t) {
    for (int32_t head = 0; head < kHeads; ++head) {
      const size_t base = static_cast<size_t>((t * kHeads + head) * kDim);
      for (size_t c = 0; c < kDim - kRotary; ++c) EXPECT_EQ(y[base + c], x[base + c]);
      for (size_t i = 0; i < kRotary / 2; ++i) {
        const size_t at = base + kDim - kRotary + 2 * i;
        const size_t entry = static_cast<size_t>(positions[t]) * 2 + i;
        const double a = x[at], b = x[at + 1], c = cos[entry], s = sin[entry];
        EXPECT_NEAR(y[at], a * c - b * s, 1e-6);
        EXPECT_NEAR(y[at + 1], a * s + b * c, 1e-6);
      }
    }
  }
  // The conjugate rotation takes it back.
  ops->Rope(2, y.data(), kHeads, kDim, positions, table, true, Rounding::kNone);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(y[i], x[i], 1e-6);
}

TEST(ReferenceRing, RowsLandAtTheirPositionModuloTheRing) {
  const auto ops = MakeReferenceOperators();
  std::vector<std::byte> rows(5 * 3), ring(7 * 3, std::byte{0});
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::byte>(i + 1);
  ops->WriteRing(5, rows.data(), 3, 12, 7, ring.data());
  for (size_t slot = 0; slot < 7; ++slot) {
    const size_t t = (slot + 7 - 12 % 7) % 7;  // row that belongs there
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(ring[slot * 3 + i], t < 5 ? rows[t * 3 + i] : std::byte{0}) << slot;
    }
  }
}

}  // namespace
}  // namespace deepinfer
