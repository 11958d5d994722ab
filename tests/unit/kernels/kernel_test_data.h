// Random arrays and a quantised-cache-free page pool for operator tests.
// Thread rule: test thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/kv_view.h"
#include "tensor/codecs.h"

namespace deepinfer {

inline std::vector<float> RandomFloats(size_t count, uint32_t seed, float scale = 1.0f) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> out(count);
  for (float& v : out) v = normal(rng);
  return out;
}

inline std::vector<uint16_t> RandomBf16(size_t count, uint32_t seed, float scale = 1.0f) {
  std::vector<uint16_t> out;
  for (float v : RandomFloats(count, seed, scale)) out.push_back(FloatToBf16(v));
  return out;
}

// Pages of one KV source with fp32 rows, reached through a shuffled table.
class FloatPages {
 public:
  FloatPages(int64_t entries, int64_t main_dim, int64_t index_dim, int32_t entries_per_block = 8)
      : table_(static_cast<size_t>((entries + entries_per_block - 1) / entries_per_block)) {
    std::iota(table_.begin(), table_.end(), 0);
    std::mt19937 rng(7);
    std::shuffle(table_.begin(), table_.end(), rng);
    pages_.entries_per_block = entries_per_block;
    pages_.main_row_bytes = CompressedRowBytes(KvFormat::kFloat32, main_dim);
    pages_.index_code_bytes = IndexCodeBytes(KvFormat::kFloat32, index_dim);
    pages_.index_code_offset = entries_per_block * pages_.main_row_bytes;
    pages_.index_scale_offset =
        pages_.index_code_offset + entries_per_block * pages_.index_code_bytes;
    pages_.block_stride = pages_.index_scale_offset;
    // NaN everywhere: a read of an entry nobody wrote shows.
    pool_.assign(table_.size() * static_cast<size_t>(pages_.block_stride), std::byte{0xFF});
    pages_.pool = pool_.data();
    pages_.block_table = table_.data();
  }
  FloatPages(const FloatPages&) = delete;
  FloatPages& operator=(const FloatPages&) = delete;

  const KvPages& pages() const { return pages_; }
  void SetMain(int64_t j, const float* row) {
    std::memcpy(pages_.MainRow(j), row, static_cast<size_t>(pages_.main_row_bytes));
  }
  void SetKey(int64_t j, const float* row) {
    std::memcpy(pages_.IndexCodes(j), row, static_cast<size_t>(pages_.index_code_bytes));
  }

 private:
  std::vector<int32_t> table_;
  std::vector<std::byte> pool_;
  KvPages pages_;
};

}  // namespace deepinfer
