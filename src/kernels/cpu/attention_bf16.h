// Attention in the bf16dot family (docs/numerics.md §7) of some heads of rows that share a cache.
// The keys of a tile are brought into the order of the family once and serve all heads of all rows
// that see the same keys there. Internal linkage on purpose (kernel_table.h).
// Thread rule: pure functions on the data of one task and its scratch.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/attention_pairs.h"
#include "kernels/cpu/attention_tile.h"
#include "kernels/denormals.h"

namespace deepinfer {
namespace {

// The standard algorithms have external linkage (kernel_table.h).
inline int64_t Smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t Larger(int64_t a, int64_t b) { return a > b ? a : b; }

inline bool SameEntries(const int32_t* a, const int32_t* b, int64_t n) {
  return std::memcmp(a, b, static_cast<size_t>(n) * sizeof *a) == 0;
}

// Keys whose rows stay in the first-level cache while all heads pass.
inline constexpr int kDotChunk = 8;

template <class Form>
class PairAttention {
 public:
  using Isa = typename Form::Isa;
  using Unit = typename Form::Unit;

  explicit PairAttention(const AttentionTask& task)
      : task_(task),
        d_(task.shape->head_dim),
        blocks_(PairBlocks(d_)),
        row_units_(blocks_ * Form::kBlockUnits),
        // Rows a multiple of 2 KB apart would fall into the same few sets of the cache.
        key_stride_(row_units_ + 16),
        num_states_(int64_t{task.num_rows} * task.num_heads) {
    float* p = task.scratch;
    sums_ = p;
    p += num_states_ * blocks_ * kPairBlock;
    q_ = reinterpret_cast<Unit*>(p);
    p += num_states_ * row_units_;
    keys_ = reinterpret_cast<Unit*>(p);
    p += (kTileKeys + 1) * key_stride_;
    weights_ = p;
    p += int64_t{task.num_heads} * kTileKeys;
    alpha_ = p;
    p += task.num_heads;
    max_ = p;
    p += num_states_;
    total_ = p;
    p += num_states_;
    plain_ = p;
  }

  void Run() {
    Begin();
    AddWindow();
    AddCompressed();
    Finish();
  }

 private:
  const AttentionRow& row(int32_t r) const { return task_.rows[r]; }
  Unit* key(int64_t i) { return keys_ + i * key_stride_; }

  void Begin() {
    std::memset(sums_, 0, static_cast<size_t>(num_states_ * blocks_ * kPairBlock) * sizeof(float));
    ClearUnits<Form>(key(kTileKeys), key_stride_);
    for (int64_t i = 0; i < num_states_; ++i) {
      max_[i] = kNoKeyMax;
      total_[i] = 0.0f;
    }
    for (int32_t r = 0; r < task_.num_rows; ++r) {
      for (int32_t h = 0; h < task_.num_heads; ++h) {
        FormRow<Form>(task_.q + r * task_.row_stride + h * d_, d_,
                      q_ + (int64_t{r} * task_.num_heads + h) * row_units_);
      }
    }
  }

  void AddWindow() {
    int64_t lowest = INT64_MAX, highest = -1;
    for (int32_t r = 0; r < task_.num_rows; ++r) {
      if (row(r).window_lo > row(r).position) continue;
      lowest = Smaller(lowest, row(r).window_lo);
      highest = Larger(highest, row(r).position);
    }
    for (int64_t first = lowest; first <= highest;) {
      const int64_t end = Smaller((first / kTileKeys + 1) * kTileKeys, highest + 1);
      for (int64_t p = first; p < end; ++p) {
        FormWindowKey<Form>(row(0).window.Row(p), d_, plain_, key(p - first));
      }
      for (int32_t r = 0; r < task_.num_rows; ++r) {
        const int64_t from = Larger(first, row(r).window_lo);
        const int64_t to = Smaller(end, int64_t{row(r).position} + 1);
        if (from < to) AddTile(r, from - first, static_cast<int>(to - from));
      }
      first = end;
    }
  }

  int64_t NumSelected(int32_t r) const {
    return row(r).pages.pool == nullptr ? 0 : *row(r).num_selected;
  }

  void AddCompressed() {
    int64_t most = 0;
    for (int32_t r = 0; r < task_.num_rows; ++r) most = Larger(most, NumSelected(r));
    for (int64_t j = 0; j < most; j += kTileKeys) {
      // Later rows see more entries: where all visible entries are selected, the tiles of earlier
      // rows are the first keys of theirs.
      const int32_t* loaded = nullptr;
      int64_t num_loaded = 0;
      for (int32_t r = task_.num_rows - 1; r >= 0; --r) {
        const int64_t n = Smaller(NumSelected(r) - j, kTileKeys);
        if (n <= 0) continue;
        const int32_t* entries = row(r).selected + j;
        if (n > num_loaded || !SameEntries(entries, loaded, n)) {
          LoadEntries(row(r), j, n);
          loaded = entries;
          num_loaded = n;
        }
        AddTile(r, 0, static_cast<int>(n));
      }
    }
  }

  // Selected entries [j, j + n) become the tile; those of the next tile are asked for.
  void LoadEntries(const AttentionRow& from, int64_t j, int64_t n) {
    const int64_t left = *from.num_selected - j;
    for (int64_t i = 0; i < n; ++i) {
      const int32_t* entry = from.selected + j + i;
      if (i + kTileKeys < left) PrefetchEntry(from.pages.MainRow(entry[kTileKeys]));
      FormCompressedKey<Form>(from.pages.MainRow(*entry), d_, plain_, key(i));
    }
  }
  void PrefetchEntry(const std::byte* entry) const {
    const int64_t size_bytes = CompressedRowBytes(KvFormat::kQuantized, d_);
    for (int64_t byte = 0; byte < size_bytes; byte += 64) __builtin_prefetch(entry + byte, 0, 2);
  }

  // Keys [first, first + num_keys) of the tile for every head of row r.
  void AddTile(int32_t r, int64_t first, int num_keys) {
    Score(r, first, num_keys);
    const int64_t state = int64_t{r} * task_.num_heads;
    for (int32_t h = 0; h < task_.num_heads; ++h) {
      float* weights = weights_ + h * kTileKeys;
      alpha_[h] =
          SoftmaxTile<Isa>(weights, num_keys, *task_.shape, &max_[state + h], &total_[state + h]);
      Form::PackWeights(weights, num_keys);
    }
    AddValues(r, first, num_keys);
  }

  [[gnu::noinline]] void ScoreFlushed(int32_t r, int64_t first, int num_keys) {
    const Unit* q = q_ + int64_t{r} * task_.num_heads * row_units_;
    for (int k = 0; k < num_keys; k += kDotChunk) {
      const int count = num_keys - k < kDotChunk ? num_keys - k : kDotChunk;
      const Unit* keys = key(first + k);
      int32_t h = 0;
      for (; h + Form::kHeads <= task_.num_heads; h += Form::kHeads) {
        PairDotHeads<Form, Form::kHeads>(q + h * row_units_, keys, count, row_units_, key_stride_,
                                         weights_ + h * kTileKeys + k);
      }
      for (; h < task_.num_heads; ++h) {
        PairDotHeads<Form, 1>(q + h * row_units_, keys, count, row_units_, key_stride_,
                              weights_ + h * kTileKeys + k);
      }
    }
  }
  void Score(int32_t r, int64_t first, int num_keys) {
    const FlushDenormalsScope flush;
    ScoreFlushed(r, first, num_keys);
  }

  template <int kCount>
  void AddValuesOfHeads(int32_t h, int64_t group, int64_t first, int num_keys, float* sums) {
    using Float = typename Form::Float;
    const int64_t channel = group * 2 * Isa::kLanes, stride = blocks_ * kPairBlock;
    float* out = sums + h * stride + channel;
    Float sum[kCount][2];
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) {
      const Float alpha = Isa::SetFloat(alpha_[h + i]);
      for (int v = 0; v < 2; ++v) {
        sum[i][v] = Isa::Multiply(Isa::LoadFloats(out + i * stride + Form::kGroupSums[v]), alpha);
      }
    }
    const float* weights = weights_ + h * kTileKeys;
    const Unit* keys = key(first) + group * Form::kGroupUnits;
    int k = 0;
    for (; k + 2 <= num_keys; k += 2) {
      Form::template AddPair<kCount>(keys + k * key_stride_, keys + (k + 1) * key_stride_, weights,
                                     k, sum);
    }
    if (k < num_keys) {
      const Unit* zeros = key(kTileKeys) + group * Form::kGroupUnits;
      Form::template AddPair<kCount>(keys + k * key_stride_, zeros, weights, k, sum);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) {
      for (int v = 0; v < 2; ++v)
        Isa::StoreFloat(out + i * stride + Form::kGroupSums[v], sum[i][v]);
    }
  }

  [[gnu::noinline]] void AddValuesFlushed(int32_t r, int64_t first, int num_keys) {
    float* sums = sums_ + int64_t{r} * task_.num_heads * blocks_ * kPairBlock;
    const int64_t groups = row_units_ / Form::kGroupUnits;
    for (int64_t group = 0; group < groups; ++group) {
      int32_t h = 0;
      for (; h + Form::kValueHeads <= task_.num_heads; h += Form::kValueHeads) {
        AddValuesOfHeads<Form::kValueHeads>(h, group, first, num_keys, sums);
      }
      for (; h < task_.num_heads; ++h) AddValuesOfHeads<1>(h, group, first, num_keys, sums);
    }
  }
  void AddValues(int32_t r, int64_t first, int num_keys) {
    const FlushDenormalsScope flush;
    AddValuesFlushed(r, first, num_keys);
  }

  void Finish() {
    for (int32_t r = 0; r < task_.num_rows; ++r) {
      for (int32_t h = 0; h < task_.num_heads; ++h) {
        const int64_t state = int64_t{r} * task_.num_heads + h;
        float* o = task_.o + r * task_.row_stride + h * d_;
        if (total_[state] == 0.0f) {
          std::memset(o, 0, static_cast<size_t>(d_) * sizeof *o);
          continue;
        }
        alignas(64) float sink[16];
        Isa::Store(sink, VectorExp<Isa>(Isa::Set1(task_.sink[h] - max_[state])));
        UnformRow(sums_ + state * blocks_ * kPairBlock, d_, total_[state] + sink[0], o);
      }
    }
  }

  const AttentionTask& task_;
  const int64_t d_;
  const int64_t blocks_;
  const int64_t row_units_;
  const int64_t key_stride_;
  const int64_t num_states_;  // rows · heads
  float* sums_;               // [rows, heads, blocks · 128] in the order of Fp32Pairs
  Unit* q_;                   // [rows, heads, row_units]
  Unit* keys_;                // [kTileKeys, key_stride] and a row of zeros
  float* weights_;            // [heads, kTileKeys] scores, then weights
  float* alpha_;              // [heads]
  float* max_;                // [rows, heads]
  float* total_;              // [rows, heads]
  float* plain_;              // [d]
};

template <class Form>
void RunAttentionBf16(const AttentionTask& task) {
  PairAttention<Form>(task).Run();
}

}  // namespace
}  // namespace deepinfer
