// The bf16dot family on many rows (linear_dot.h): a panel of outputs is decoded to the first-level
// cache and meets all rows there. Internal linkage on purpose (kernel_table.h).
// Thread rule: pure functions on the data of one task.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/linear_dot_exact.h"
#include "kernels/cpu/linear_dot_rows.h"
#include "kernels/cpu/linear_dot_weights.h"
#include "kernels/denormals.h"

namespace deepinfer {
namespace {

// The sums of one half of a block, [rows][kTileOutputs].
template <class Isa, int kRows>
struct TileSums {
  static constexpr int kOutputs = Isa::kTileOutputs;

  // w: [step][kTileOutputs] operands; x[r] + offset: [step] operands.
  [[gnu::always_inline]] void Run(const typename Isa::Reg* w, const std::byte* const (&x)[kRows],
                                  int64_t offset) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < kOutputs; ++c) sum[r][c] = Isa::Zero();
    }
#pragma GCC unroll 8
    for (int s = 0; s < Isa::kSteps; ++s) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const typename Isa::Reg value = Isa::LoadReg(x[r] + offset + s * Isa::kRegBytes);
#pragma GCC unroll 8
        for (int c = 0; c < kOutputs; ++c) {
          sum[r][c] = Isa::Step(sum[r][c], w[s * kOutputs + c], value);
        }
      }
    }
  }

  typename Isa::Acc sum[kRows][kOutputs];
};

// Calls fn(r, c) for every sum of a tile.
template <class Isa, int kRows, typename Fn>
[[gnu::always_inline]] inline void ForTile(Fn&& fn) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < Isa::kTileOutputs; ++c) fn(r, c);
  }
}

// acc[r][c] continues over `halves` halves of blocks, or starts if is_first. w:
// [halves][step][kTileOutputs] operands, x[r]: [halves][step] operands; acc: 16 lanes of every
// output, rows acc_stride floats apart.
template <class Isa, int kRows>
[[gnu::noinline]] void AccumulateTile(const typename Isa::Reg* w, const std::byte* const* x,
                                      int64_t x_offset, int64_t halves, bool is_first, float* acc,
                                      int64_t acc_stride) {
  using Acc = typename Isa::Acc;
  constexpr int64_t kHalfRegs = Isa::kSteps * Isa::kTileOutputs;
  constexpr int64_t kHalfBytes = Isa::kSteps * Isa::kRegBytes;
  const std::byte* row[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) row[r] = x[r] + x_offset;
  const auto lanes_of = [=](int r, int c) { return acc + r * acc_stride + 16 * c; };
  if constexpr (Isa::kHalves == 1) {
    // Storing the totals once per block would cost as much as half of the steps.
    Acc total[kRows][Isa::kTileOutputs];
    ForTile<Isa, kRows>(
        [&](int r, int c) { total[r][c] = is_first ? Isa::Zero() : Isa::Load(lanes_of(r, c)); });
    for (int64_t i = 0; i < halves; ++i, w += kHalfRegs) {
      TileSums<Isa, kRows> sums;
      sums.Run(w, row, i * kHalfBytes);
      ForTile<Isa, kRows>(
          [&](int r, int c) { total[r][c] = Isa::Add(total[r][c], sums.sum[r][c]); });
    }
    ForTile<Isa, kRows>([&](int r, int c) { Isa::Store(lanes_of(r, c), total[r][c]); });
  } else {
    for (int64_t i = 0; i < halves; ++i, w += kHalfRegs) {
      TileSums<Isa, kRows> sums;
      sums.Run(w, row, i * kHalfBytes);
      const int64_t lane = i % Isa::kHalves * Isa::kLanes;
      const bool starts = is_first && i < Isa::kHalves;
      ForTile<Isa, kRows>([&](int r, int c) {
        float* lanes = lanes_of(r, c) + lane;
        Isa::Store(lanes, Isa::Add(starts ? Isa::Zero() : Isa::Load(lanes), sums.sum[r][c]));
      });
    }
  }
}

// AccumulateTile for 1..kMaxRows rows known at run time.
template <class Isa, int kMaxRows>
void AccumulateRows(int64_t rows, const typename Isa::Reg* w, const std::byte* const* x,
                    int64_t x_offset, int64_t halves, bool is_first, float* acc,
                    int64_t acc_stride) {
  if constexpr (kMaxRows > 1) {
    if (rows < kMaxRows) {
      return AccumulateRows<Isa, kMaxRows - 1>(rows, w, x, x_offset, halves, is_first, acc,
                                               acc_stride);
    }
  }
  AccumulateTile<Isa, kMaxRows>(w, x, x_offset, halves, is_first, acc, acc_stride);
}

// Up to kOutputs outputs of up to kRows rows. The values of a chunk of K and the sums stay in the
// second-level cache.
template <class Form>
class Panel {
 public:
  using Isa = typename Form::Isa;
  using Reg = typename Isa::Reg;
  static constexpr int64_t kOutputs = Isa::kPanelOutputs;
  static constexpr int64_t kRows = Isa::kPanelRows;

  // all: the task that this is a part of.
  Panel(const LinearTask& task, const StoredRows<Form>& rows, const LinearTask& all)
      : task_(task),
        rows_(rows),
        ahead_(rows.DataAhead(all)),
        rows_are_far_(task.num_rows * rows.blocks() * Isa::kBlockBytes > kNearBytes) {
    static_assert(kOutputs % Isa::kTileOutputs == 0 && kOutputs <= kSumOutputs);
  }

  // All outputs of the task. False, and no result, if a weight is not moderate.
  bool Run() {
    if (!rows_.HaveModerateScales(task_.first_output, task_.num_outputs)) return false;
    // Outputs that fill up the last tile.
    if (task_.num_outputs < kOutputs) {
      std::memset(static_cast<void*>(weights_), 0, sizeof weights_);
      std::memset(acc_, 0, sizeof acc_);
    }
    for (int64_t b = 0; b < rows_.blocks(); b += Isa::kChunkBlocks) {
      const int64_t left = rows_.blocks() - b;
      const int64_t blocks = left < Isa::kChunkBlocks ? left : Isa::kChunkBlocks;
      if (!DecodeWeights(b, blocks)) return false;
      const FlushDenormalsScope flush;
      Accumulate(b, blocks);
    }
    const FlushDenormalsScope flush;
    StoreSums();
    return true;
  }

 private:
  static constexpr int64_t kTiles = kOutputs / Isa::kTileOutputs;
  static constexpr int64_t kTileRegs =
      Isa::kChunkBlocks * Isa::kHalves * Isa::kSteps * Isa::kTileOutputs;
  // Values of all rows of a task that stay in the second-level cache beside weights and sums.
  static constexpr int64_t kNearBytes = int64_t{512} << 10;
  // Rows a multiple of 4 KB apart would fall into the same sets of the caches.
  static constexpr int64_t kAccStride = 16 * (kSumOutputs + 1);

  // Multiplies denormals, so it must stay outside of scopes that flush.
  [[gnu::noinline]] bool DecodeWeights(int64_t b0, int64_t blocks) {
    typename Form::PanelWatch watch;
    typename StoredRows<Form>::Tail tail;
    // The next chunk of an output comes up after this one has met all rows; behind the last one
    // follow the outputs of the next panel.
    const int64_t ahead_bytes = b0 + blocks < rows_.blocks()
                                    ? blocks * Form::kBlockBytes
                                    : kOutputs * rows_.row_bytes() - b0 * Form::kBlockBytes;
    for (int64_t c = 0; c < task_.num_outputs; ++c) {
      Reg* out = weights_[c / Isa::kTileOutputs] + c % Isa::kTileOutputs;
      for (int64_t b = b0; b < b0 + blocks; ++b) {
        const StoredBlock block = rows_.Block(task_.first_output + c, b, &tail);
        ahead_.Ask<Form::kBlockBytes>(block.bytes + ahead_bytes);
        const typename Form::Scales scales(block.scales);
#pragma GCC unroll 2
        for (int h = 0; h < Isa::kHalves; ++h) {
          Reg w[Isa::kSteps];
          Decode<Form>(block.bytes, h, w);
          watch.See(block.bytes, h);
          scales.Fold(h, w);
#pragma GCC unroll 8
          for (int s = 0; s < Isa::kSteps; ++s, out += Isa::kTileOutputs) *out = w[s];
        }
      }
    }
    return !watch.SawNan();
  }

  void Accumulate(int64_t b0, int64_t blocks) {
    const int64_t tiles = (task_.num_outputs + Isa::kTileOutputs - 1) / Isa::kTileOutputs;
    const int64_t x_offset = kDotHeaderBytes + b0 * Isa::kBlockBytes;
    // Even shares: a tile of few rows has too few sums to hide the latency of a step.
    const int64_t row_tiles = (task_.num_rows + Isa::kTileRows - 1) / Isa::kTileRows;
    for (int64_t i = 0; i < row_tiles; ++i) {
      const int64_t m = task_.num_rows * i / row_tiles;
      const int64_t rows = task_.num_rows * (i + 1) / row_tiles - m;
      if (rows_are_far_) PrefetchRows(m + rows, x_offset, blocks * Isa::kBlockBytes);
      for (int64_t tile = 0; tile < tiles; ++tile) {
        float* acc = acc_ + m * kAccStride + 16 * tile * Isa::kTileOutputs;
        AccumulateRows<Isa, Isa::kTileRows>(rows, weights_[tile], task_.x + m, x_offset,
                                            blocks * Isa::kHalves, b0 == 0, acc, kAccStride);
      }
    }
  }

  // Values of the rows of the next tile: their parts are too short for the hardware to see a
  // stream.
  void PrefetchRows(int64_t m, int64_t offset, int64_t size_bytes) const {
    const int64_t left = task_.num_rows - m;
    const int64_t rows = left < Isa::kTileRows ? left : Isa::kTileRows;
    for (int64_t r = 0; r < rows; ++r) {
      const std::byte* x = task_.x[m + r] + offset;
      for (int64_t byte = 0; byte < size_bytes; byte += 64) {
        _mm_prefetch(reinterpret_cast<const char*>(x + byte), _MM_HINT_T0);
      }
    }
  }

  [[gnu::noinline]] void StoreSums() {
    for (int64_t m = 0; m < task_.num_rows; ++m) {
      alignas(64) float sums[kSumOutputs];
      Isa::SumLanes(acc_ + m * kAccStride, sums);
      std::memcpy(task_.y[m] + task_.y_column, sums,
                  static_cast<size_t>(task_.num_outputs) * sizeof *sums);
    }
  }

  const LinearTask& task_;
  const StoredRows<Form>& rows_;
  const WeightsAhead ahead_;
  const bool rows_are_far_;
  alignas(64) Reg weights_[kTiles][kTileRegs];
  alignas(64) float acc_[kRows * kAccStride];
};

template <class Form>
void RunPanels(const LinearTask& task, const StoredRows<Form>& rows) {
  using P = Panel<Form>;
  const int64_t end = task.first_output + task.num_outputs;
  for (int64_t m = 0; m < task.num_rows; m += P::kRows) {
    for (int64_t n = task.first_output; n < end; n += P::kOutputs) {
      LinearTask part = task;
      part.num_rows = task.num_rows - m < P::kRows ? task.num_rows - m : P::kRows;
      part.x = task.x + m;
      part.y = task.y + m;
      part.y_column = task.y_column + n - task.first_output;
      part.first_output = n;
      part.num_outputs = end - n < P::kOutputs ? end - n : P::kOutputs;
      rows.AskForScales(task, n);
      P panel(part, rows, task);
      if (panel.Run()) continue;
      for (int64_t c = 0; c < part.num_outputs; ++c) RunExactOutput(part, rows, n + c);
    }
  }
}

}  // namespace
}  // namespace deepinfer
