// Outputs of the bf16dot family by the letter of docs/numerics.md §7: for weights and rows whose
// powers of two must not be moved about (linear_dot.h). Slow and never wrong.
// Internal linkage on purpose (kernel_table.h).
// Thread rule: pure functions on the data of one task.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/linear_dot_rows.h"
#include "kernels/cpu/linear_dot_weights.h"
#include "kernels/cpu/small_floats.h"
#include "kernels/denormals.h"

namespace deepinfer {
namespace {

// acc [16] continues over one block.
template <class Isa>
[[gnu::noinline]] void AddExactBlock(const typename Isa::Reg (&w)[Isa::kHalves][Isa::kSteps],
                                     const float* scale, const std::byte* x, bool is_moderate,
                                     float* acc) {
  for (int h = 0; h < Isa::kHalves; ++h) {
    typename Isa::Acc sum = Isa::Zero();
    for (int s = 0; s < Isa::kSteps; ++s, x += Isa::kRegBytes) {
      const typename Isa::Reg value = Isa::LoadReg(x);
      sum = Isa::Step(sum, w[h][s], is_moderate ? Isa::PlainRowValue(value) : value);
    }
    float* total = acc + h * Isa::kLanes;
    Isa::Store(total, Isa::Fma(sum, Isa::Load(scale + h * Isa::kLanes), Isa::Load(total)));
  }
}

// Exact may multiply denormals, so it must stay outside of the scopes that flush them.
template <class Form>
[[gnu::noinline]] void DecodeExactBlock(
    const StoredBlock& block, typename Form::Isa::Reg (&w)[Form::Isa::kHalves][Form::Isa::kSteps],
    float* scale) {
  for (int h = 0; h < Form::Isa::kHalves; ++h) {
    Decode<Form>(block.bytes, h, w[h]);
    for (auto& v : w[h]) v = Form::Exact(v);
  }
  for (int j = 0; j < 16; ++j) {
    scale[j] = ScaleValue(static_cast<uint8_t>(block.scales >> (j / 4 * 8)));
  }
}

template <class Isa>
[[gnu::noinline]] void StoreExactSums(const LinearTask& task, int64_t n, const float (*acc)[16]) {
  for (int64_t m = 0; m < task.num_rows; ++m) {
    task.y[m][task.y_column + n - task.first_output] = Isa::LaneSum(acc[m]);
  }
}

template <class Form>
void RunExactOutput(const LinearTask& task, const StoredRows<Form>& rows, int64_t n) {
  using Isa = typename Form::Isa;
  alignas(64) float acc[kMaxTaskRows][16];
  std::memset(acc, 0, static_cast<size_t>(task.num_rows) * sizeof acc[0]);
  for (int64_t b = 0; b < rows.blocks(); ++b) {
    typename StoredRows<Form>::Tail tail;
    typename Isa::Reg w[Isa::kHalves][Isa::kSteps];
    alignas(64) float scale[16];
    DecodeExactBlock<Form>(rows.Block(n, b, &tail), w, scale);
    const FlushDenormalsScope flush;
    for (int64_t m = 0; m < task.num_rows; ++m) {
      const std::byte* x = task.x[m];
      AddExactBlock<Isa>(w, scale, DotRowBlock<Isa>(x, b), IsModerateRow(x), acc[m]);
    }
  }
  const FlushDenormalsScope flush;
  StoreExactSums<Isa>(task, n, acc);
}

}  // namespace
}  // namespace deepinfer
