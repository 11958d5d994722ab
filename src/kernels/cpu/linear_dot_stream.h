// The bf16dot family on few rows (linear_dot.h): weights are decoded in registers and meet all rows
// there. Internal linkage on purpose (kernel_table.h).
// Thread rule: pure functions on the data of one task.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/linear_dot_exact.h"
#include "kernels/cpu/linear_dot_rows.h"
#include "kernels/cpu/linear_dot_weights.h"

namespace deepinfer {
namespace {

// Outputs and blocks of one pass over the values of a chunk of K.
struct StreamPass {
  int64_t first_output = 0;
  int64_t num_outputs = 0;  // at most kSumOutputs
  int64_t first_block = 0;
  int64_t num_blocks = 0;
  int64_t ahead_bytes = 0;  // from a block to the one to ask for
};

// Lane sums of kSumOutputs outputs of a row.
using LaneSums = float[kSumOutputs][16];

// sums[m][i] continues over the blocks of the pass. Bit i of the result: the weights of output i
// hold a NaN that the operands do not show.
template <class Form, int kRows>
[[gnu::noinline]] uint32_t StreamBlocks(const LinearTask& task, const StoredRows<Form>& rows,
                                        const StreamPass& pass, LaneSums* sums) {
  using Isa = typename Form::Isa;
  // Halves whose sums run side by side. They are chains, and a CPU looks ahead only so far for
  // operations that do not wait; but the sums of many rows are chains enough and need the
  // registers.
  constexpr int kTogether = kRows <= 2 ? Isa::kHalves : 1;
  const std::byte* x[kRows];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) x[m] = DotRowBlock<Isa>(task.x[m], pass.first_block);
  const WeightsAhead ahead = rows.DataAhead(task);
  uint32_t damaged = 0;
  for (int64_t i = 0; i < pass.num_outputs; ++i) {
    typename Isa::Acc acc[kRows][Isa::kHalves];
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 2
      for (int h = 0; h < Isa::kHalves; ++h) {
        acc[m][h] = pass.first_block == 0 ? Isa::Zero() : Isa::Load(sums[m][i] + h * Isa::kLanes);
      }
    }
    typename Form::StreamWatch watch;
    typename StoredRows<Form>::Tail tail;
    for (int64_t b = 0; b < pass.num_blocks; ++b) {
      const StoredBlock block = rows.Block(pass.first_output + i, pass.first_block + b, &tail);
      ahead.Ask<Form::kBlockBytes>(block.bytes + pass.ahead_bytes);
      const int64_t offset = b * Isa::kBlockBytes;
      // Halves from `first` on, a constant, so that sums stay in registers.
      const auto add_halves = [&](auto first_half) __attribute__((always_inline)) {
        constexpr int first = decltype(first_half)::value;
        typename Form::Codes codes[kTogether];
        typename Isa::Acc sum[kRows][kTogether];
#pragma GCC unroll 2
        for (int h = 0; h < kTogether; ++h) {
          codes[h] = Form::Load(block.bytes, first + h);
          watch.See(block.bytes, first + h);
#pragma GCC unroll 8
          for (int m = 0; m < kRows; ++m) sum[m][h] = Isa::Zero();
        }
#pragma GCC unroll 8
        for (int s = 0; s < Isa::kSteps; ++s) {
#pragma GCC unroll 2
          for (int h = 0; h < kTogether; ++h) {
            const typename Isa::Reg w = Form::Operand(codes[h], s);
            const int64_t step = offset + ((first + h) * Isa::kSteps + s) * Isa::kRegBytes;
#pragma GCC unroll 8
            for (int m = 0; m < kRows; ++m) {
              sum[m][h] = Isa::Step(sum[m][h], w, Isa::LoadReg(x[m] + step));
            }
          }
        }
        const typename Form::Scales scales(block.scales);
#pragma GCC unroll 2
        for (int h = 0; h < kTogether; ++h) {
#pragma GCC unroll 8
          for (int m = 0; m < kRows; ++m) {
            acc[m][first + h] = scales.AddScaled(sum[m][h], first + h, acc[m][first + h]);
          }
        }
      };
      add_halves(std::integral_constant<int, 0>{});
      if constexpr (kTogether < Isa::kHalves) add_halves(std::integral_constant<int, 1>{});
    }
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 2
      for (int h = 0; h < Isa::kHalves; ++h) {
        Isa::Store(sums[m][i] + h * Isa::kLanes, acc[m][h]);
      }
    }
    if (watch.SawNan()) damaged |= uint32_t{1} << i;
  }
  return damaged;
}

// Blocks of K whose values stay in the first-level cache while the outputs of a pass meet them.
template <class Isa, int kRows>
int64_t StreamChunkBlocks(int64_t blocks) {
  const int64_t most = Isa::kStreamChunkBytes / (kRows * Isa::kBlockBytes);
  const int64_t chunks = (blocks + most - 1) / most;
  return (blocks + chunks - 1) / chunks;
}

// Results of outputs n.. from their lane sums.
template <class Isa, int kRows>
[[gnu::noinline]] void StoreLaneSums(const LinearTask& task, int64_t n, int64_t count,
                                     const LaneSums* sums) {
  const int64_t column = task.y_column + n - task.first_output;
  for (int m = 0; m < kRows; ++m) {
    alignas(64) float out[kSumOutputs];
    Isa::SumLanes(sums[m][0], out);
    if (count == kSumOutputs) {
      std::memcpy(task.y[m] + column, out, sizeof out);
    } else {
      std::memcpy(task.y[m] + column, out, static_cast<size_t>(count) * sizeof *out);
    }
  }
}

// Outputs n.. of all rows. Bit i of the result: output n + i is not valid (StreamBlocks).
template <class Form, int kRows>
uint32_t StreamOutputs(const LinearTask& task, const StoredRows<Form>& rows, int64_t n,
                       int64_t count) {
  using Isa = typename Form::Isa;
  alignas(64) LaneSums sums[kRows];
  if (count < kSumOutputs) std::memset(sums, 0, sizeof sums);
  rows.AskForScales(task, n);
  const int64_t chunk = StreamChunkBlocks<Isa, kRows>(rows.blocks());
  uint32_t damaged = 0;
  for (int64_t b = 0; b < rows.blocks(); b += chunk) {
    StreamPass pass{n, count, b, chunk, Form::kAheadBytes};
    if (b + chunk >= rows.blocks()) pass.num_blocks = rows.blocks() - b;
    if (chunk < rows.blocks()) {
      // The next chunk of the same outputs, or the first one of the next outputs.
      pass.ahead_bytes = pass.num_blocks == rows.blocks() - b
                             ? kSumOutputs * rows.row_bytes() - b * Form::kBlockBytes
                             : chunk * Form::kBlockBytes;
    }
    damaged |= StreamBlocks<Form, kRows>(task, rows, pass, sums);
  }
  StoreLaneSums<Isa, kRows>(task, n, count, sums);
  return damaged;
}

template <class Form, int kRows>
void RunStream(const LinearTask& task, const StoredRows<Form>& rows) {
  if constexpr (kRows > 1) {
    if (task.num_rows < kRows) return RunStream<Form, kRows - 1>(task, rows);
  }
  const typename Form::StreamScope scope;
  const int64_t end = task.first_output + task.num_outputs;
  for (int64_t n = task.first_output; n < end; n += kSumOutputs) {
    const int64_t count = end - n < kSumOutputs ? end - n : kSumOutputs;
    uint32_t exact = 0;
    if (!rows.HaveModerateScales(n, count)) [[unlikely]] {
      for (int64_t i = 0; i < count; ++i) {
        if (!rows.HaveModerateScales(n + i, 1)) exact |= uint32_t{1} << i;
      }
    }
    exact |= StreamOutputs<Form, kRows>(task, rows, n, count);
    for (int64_t i = 0; exact != 0; ++i, exact >>= 1) {
      if ((exact & 1) != 0) RunExactOutput(task, rows, n + i);
    }
  }
}

}  // namespace
}  // namespace deepinfer
