// Linear kernel of one f32fma task (kernel_table.h), for every instruction set. A chunk of the
// weights of 16·kVecs outputs is unpacked once into a first-level-cache buffer, [k][output] in
// fp32, and all rows of the task run over it. An accumulator starts from 0 in every segment and the
// segment sums are added upwards (numerics.md §7), so neither the number of rows nor the shape of
// the task can change a bit.
// Internal linkage on purpose (kernel_table.h).
// Thread rule: pure functions on the data of one task.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/kernel_table.h"

namespace deepinfer {
namespace {

// acc[r][v] continues over `steps` k. w: [steps][kVecs][16], x[r]: 4 bytes per k.
template <class Family, int kRows, int kVecs>
[[gnu::noinline]] void AccumulateRows(const float* w, const std::byte* const* x, int64_t x_offset,
                                      int64_t steps, float* acc) {
  using Isa = typename Family::Isa;
  using Vec = typename Isa::Vec;
  Vec sum[kRows][kVecs];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) sum[r][v] = Isa::Load(acc + (r * kVecs + v) * kVectorOutputs);
  }
  const std::byte* row[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) row[r] = x[r] + x_offset;
  for (int64_t s = 0; s < steps; ++s) {
    Vec weight[kVecs];
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) weight[v] = Isa::Load(w + (s * kVecs + v) * kVectorOutputs);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Vec value = Isa::Broadcast(row[r] + 4 * s);
#pragma GCC unroll 16
      for (int v = 0; v < kVecs; ++v) sum[r][v] = Family::Step(sum[r][v], weight[v], value);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) Isa::Store(acc + (r * kVecs + v) * kVectorOutputs, sum[r][v]);
  }
}

// AccumulateRows for 1..kMaxRows rows known at run time.
template <class Family, int kMaxRows, int kVecs>
void AccumulateBlock(int64_t rows, const float* w, const std::byte* const* x, int64_t x_offset,
                     int64_t steps, float* acc) {
  if constexpr (kMaxRows > 1) {
    if (rows < kMaxRows) {
      AccumulateBlock<Family, kMaxRows - 1, kVecs>(rows, w, x, x_offset, steps, acc);
      return;
    }
  }
  AccumulateRows<Family, kMaxRows, kVecs>(w, x, x_offset, steps, acc);
}

// y (+)= the segment sums of every row.
template <class Isa, int kVecs>
void AddSegment(const LinearTask& task, bool first, const float* acc) {
  for (int64_t m = 0; m < task.num_rows; ++m) {
    float* y = task.y[m] + task.y_column;
    for (int v = 0; v * kVectorOutputs < task.num_outputs; ++v, y += kVectorOutputs) {
      const int left = static_cast<int>(task.num_outputs) - v * kVectorOutputs;
      typename Isa::Vec sum = Isa::Load(acc + (m * kVecs + v) * kVectorOutputs);
      if (left >= kVectorOutputs) {
        Isa::Store(y, first ? sum : Isa::Add(Isa::Load(y), sum));
      } else {
        Isa::StorePartial(y, first ? sum : Isa::Add(Isa::LoadPartial(y, left), sum), left);
      }
    }
  }
}

// Family: Isa, kUnpackedBytes (size of the buffer), MaxRows<kVecs>, Step and Unpack.
template <class Family, int kVecs>
void RunLinearTask(const LinearTask& task) {
  constexpr int64_t kChunk = Family::kUnpackedBytes / (kVecs * kVectorOutputs * 4);
  constexpr int kRows = Family::template MaxRows<kVecs>();
  static_assert(kSegmentLength % kChunk == 0);
  // Lanes past the last output stay zero.
  alignas(64) float weights[Family::kUnpackedBytes / 4] = {};
  alignas(64) float acc[kMaxTaskRows * kVecs * kVectorOutputs];
  const int64_t k = task.weight->in_features;
  for (int64_t begin = 0; begin < k; begin += kSegmentLength) {
    const int64_t end = begin + kSegmentLength < k ? begin + kSegmentLength : k;
    for (int64_t i = 0; i < task.num_rows * kVecs * kVectorOutputs; ++i) acc[i] = 0.0f;
    for (int64_t k0 = begin; k0 < end; k0 += kChunk) {
      const int64_t length = end - k0 < kChunk ? end - k0 : kChunk;
      for (int64_t n = 0; n < task.num_outputs; n += kVectorOutputs) {
        const int64_t left = task.num_outputs - n;
        Family::Unpack(*task.weight, task.first_output + n,
                       left < kVectorOutputs ? left : kVectorOutputs, k0, length, weights + n,
                       kVecs * kVectorOutputs);
      }
      for (int64_t m = 0; m < task.num_rows; m += kRows) {
        const int64_t rows = task.num_rows - m < kRows ? task.num_rows - m : kRows;
        AccumulateBlock<Family, kRows, kVecs>(rows, weights, task.x + m, 4 * k0, length,
                                              acc + m * kVecs * kVectorOutputs);
      }
    }
    AddSegment<typename Family::Isa, kVecs>(task, begin == 0, acc);
  }
}

}  // namespace
}  // namespace deepinfer
