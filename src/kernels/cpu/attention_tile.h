// Attention of one row (kernel_table.h), for every instruction set. The keys of a tile are
// dequantised once and serve all heads of the task. The order is that of ops.h: Lane16 scores,
// online softmax over tiles, weighted values added over keys upwards. Internal linkage on purpose
// (kernel_table.h). Thread rule: pure functions on the data of one task and its scratch.
#pragma once

#include <cstdint>

#include "kernels/cpu/attention_keys.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/vector_math.h"

namespace deepinfer {
namespace {

inline constexpr float kNoKeyMax = -1e30f;

// Scores s [num_keys] of one head -> weights exp(s·scale - max), rounded as the shape says after
// they were summed. Returns the factor by which what was summed before shrinks.
template <class Isa>
float SoftmaxTile(float* s, int num_keys, const AttentionShape& shape, float* max, float* sum) {
  using Vec = typename Isa::Vec;
  const Vec factor = Isa::Set1(shape.scale);
  const bool round = shape.weights == Rounding::kBf16;
  Vec largest = Isa::Set1(*max);
  ForEachVector(num_keys, [=, &largest](int64_t i, int n) {
    const Vec scaled = Isa::Mul(LoadUpTo16<Isa>(s + i, n), factor);
    StoreUpTo16<Isa>(s + i, scaled, n);
    if (n == 16) largest = Isa::Max(scaled, largest);
  });
  float new_max = Isa::LaneMax(largest);
  for (int i = num_keys / 16 * 16; i < num_keys; ++i) new_max = s[i] > new_max ? s[i] : new_max;
  Vec total = Isa::Zero();
  const Vec shift = Isa::Set1(new_max);
  ForEachVector(num_keys, [=, &total](int64_t i, int n) {
    const Vec weight = VectorExp<Isa>(Isa::Sub(LoadUpTo16<Isa>(s + i, n), shift));
    StoreUpTo16<Isa>(s + i, weight, n);
    // Weights are not negative, so the zeros of a partial vector leave every lane as it is.
    total = Isa::Add(total, n == 16 ? weight : Isa::LoadPartial(s + i, n));
    if (round) StoreUpTo16<Isa>(s + i, Isa::RoundBf16(weight), n);
  });
  alignas(64) float alpha[16];
  Isa::Store(alpha, VectorExp<Isa>(Isa::Set1(*max - new_max)));
  *sum = *sum * alpha[0] + Isa::LaneSum(total);
  *max = new_max;
  return alpha[0];
}

// o[h] = o[h]·alpha[h] + sum over keys ascending of weight[h, key]·value[key], channels
// [c, c + 16·kVecs) of kHeads heads.
template <class Isa, int kHeads, int kVecs>
void AddValuesBlock(const float* keys, int num_keys, int64_t d, const float* weights,
                    const float* alpha, int64_t c, float* o) {
  using Vec = typename Isa::Vec;
  Vec acc[kHeads][kVecs];
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      acc[h][v] = Isa::Mul(Isa::Load(o + h * d + c + 16 * v), Isa::Set1(alpha[h]));
    }
  }
  for (int i = 0; i < num_keys; ++i) {
    const float* key = keys + i * d + c;
    Vec value[kVecs];
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) value[v] = Isa::Load(key + 16 * v);
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) {
      const Vec weight = Isa::Set1(weights[h * kTileKeys + i]);
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) acc[h][v] = Isa::Fma(weight, value[v], acc[h][v]);
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) Isa::Store(o + h * d + c + 16 * v, acc[h][v]);
  }
}

// Channels [c, d) of one head, fewer than 16 at the end.
template <class Isa>
void AddValuesRest(const float* keys, int num_keys, int64_t d, const float* weights, float alpha,
                   int64_t c, float* o) {
  using Vec = typename Isa::Vec;
  ForEachVector(d - c, [=](int64_t offset, int n) {
    float* out = o + c + offset;
    Vec acc = Isa::Mul(LoadUpTo16<Isa>(out, n), Isa::Set1(alpha));
    for (int i = 0; i < num_keys; ++i) {
      acc = Isa::Fma(Isa::Set1(weights[i]), LoadUpTo16<Isa>(keys + i * d + c + offset, n), acc);
    }
    StoreUpTo16<Isa>(out, acc, n);
  });
}

template <class Isa, int kHeads, int kVecs>
void AddValuesHeads(const float* keys, int num_keys, int64_t d, const float* weights,
                    const float* alpha, float* o) {
  int64_t c = 0;
  for (; c + 16 * kVecs <= d; c += 16 * kVecs) {
    AddValuesBlock<Isa, kHeads, kVecs>(keys, num_keys, d, weights, alpha, c, o);
  }
  if (c == d) return;
  for (int h = 0; h < kHeads; ++h) {
    AddValuesRest<Isa>(keys, num_keys, d, weights + h * kTileKeys, alpha[h], c, o + h * d);
  }
}

// The state of a task between tiles: keys [kTileKeys, d], scores [heads, kTileKeys], then the
// running maximum and sum of every head.
template <class Isa>
class AttentionState {
 public:
  // Of row r of the task.
  AttentionState(const AttentionTask& task, int32_t r)
      : task_(task),
        q_(task.q + r * task.row_stride),
        o_(task.o + r * task.row_stride),
        d_(task.shape->head_dim),
        keys_(task.scratch),
        scores_(keys_ + kTileKeys * d_),
        max_(scores_ + int64_t{kTileKeys} * task.num_heads),
        sum_(max_ + task.num_heads) {
    for (int32_t h = 0; h < task.num_heads; ++h) {
      max_[h] = kNoKeyMax;
      sum_[h] = 0.0f;
    }
    for (int64_t i = 0; i < task.num_heads * d_; ++i) o_[i] = 0.0f;
  }

  float* key(int64_t i) { return keys_ + i * d_; }

  void AddTile(int num_keys) {
    constexpr int kHeads = Isa::kLanes == 16 ? 4 : 2;
    constexpr int kVecs = Isa::kLanes == 16 ? 4 : 2;
    DotMatrix<Isa>(q_, d_, task_.num_heads, keys_, d_, num_keys, d_, scores_, kTileKeys);
    int32_t h = 0;
    for (; h + kHeads <= task_.num_heads; h += kHeads) AddHeads<kHeads, kVecs>(h, num_keys);
    for (; h < task_.num_heads; ++h) AddHeads<1, kVecs>(h, num_keys);
  }

  void Finish() {
    for (int32_t h = 0; h < task_.num_heads; ++h) {
      if (sum_[h] == 0.0f) continue;
      alignas(64) float sink[16];
      Isa::Store(sink, VectorExp<Isa>(Isa::Set1(task_.sink[h] - max_[h])));
      const typename Isa::Vec denominator = Isa::Set1(sum_[h] + sink[0]);
      float* o = o_ + h * d_;
      ForEachVector(d_, [=](int64_t i, int n) {
        StoreUpTo16<Isa>(o + i, Isa::Div(LoadUpTo16<Isa>(o + i, n), denominator), n);
      });
    }
  }

 private:
  template <int kHeads, int kVecs>
  void AddHeads(int32_t h, int num_keys) {
    float alpha[kHeads];
    float* weights = scores_ + int64_t{h} * kTileKeys;
    for (int i = 0; i < kHeads; ++i) {
      alpha[i] = SoftmaxTile<Isa>(weights + i * kTileKeys, num_keys, *task_.shape, &max_[h + i],
                                  &sum_[h + i]);
    }
    AddValuesHeads<Isa, kHeads, kVecs>(keys_, num_keys, d_, weights, alpha, o_ + h * d_);
  }

  const AttentionTask& task_;
  const float* q_;
  float* o_;
  int64_t d_;
  float* keys_;
  float* scores_;
  float* max_;
  float* sum_;
};

template <class Isa>
void RunAttentionRow(const AttentionTask& task, int32_t r) {
  AttentionState<Isa> state(task, r);
  const AttentionRow& row = task.rows[r];
  const AttentionShape& shape = *task.shape;
  for (int64_t p = row.window_lo; p <= row.position;) {
    const int64_t boundary = (p / kTileKeys + 1) * kTileKeys;
    const int64_t end = boundary <= row.position ? boundary : int64_t{row.position} + 1;
    for (int64_t i = p; i < end; ++i) {
      LoadWindowKey<Isa>(shape.format, row.window.Row(i), shape.head_dim, state.key(i - p));
    }
    state.AddTile(static_cast<int>(end - p));
    p = end;
  }
  const int64_t num_selected = row.pages.pool == nullptr ? 0 : *row.num_selected;
  for (int64_t j = 0; j < num_selected; j += kTileKeys) {
    const int64_t end = j + kTileKeys < num_selected ? j + kTileKeys : num_selected;
    for (int64_t i = j; i < end; ++i) {
      LoadCompressedKey<Isa>(shape.format, row.pages.MainRow(row.selected[i]), shape.head_dim,
                             state.key(i - j));
    }
    state.AddTile(static_cast<int>(end - j));
  }
  state.Finish();
}

template <class Isa>
void RunAttentionFp32(const AttentionTask& task) {
  for (int32_t r = 0; r < task.num_rows; ++r) RunAttentionRow<Isa>(task, r);
}

}  // namespace
}  // namespace deepinfer
