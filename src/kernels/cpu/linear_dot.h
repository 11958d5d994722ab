// Linear kernels of the bf16dot family (docs/numerics.md §7, Lane16 pairs) for every instruction
// set and stored form. Lanes run over K, so a weight row is used as it lies in memory.
//
// Isa: Reg (operands of one step of kLanes lanes), Acc (kLanes fp32 sums), kHalves = 16 / kLanes
//   registers a step, kSteps steps a block of 128 k, and the shape of the register tile.
// Form: one stored form on an Isa. Load takes one half of a block, Operand makes the operand of a
//   step of it; operands may lack a power of two that Scales and the rows of activations give back,
//   so that this is a few bit operations.
//
// A moderate weight has scales of 2^±40 and no NaN, a moderate row values of 2^-41 to 2^49
// (linear_dot_rows.h). Their products and sums stay normal numbers with every power of two that
// is moved about below, so moving it is exact. What is not moderate takes RunExactOutput, which
// follows the definition to the letter.
// Internal linkage on purpose (kernel_table.h).
// Thread rule: pure functions on the data of one task.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/linear_dot_rows.h"
#include "kernels/cpu/small_floats.h"
#include "kernels/denormals.h"

namespace deepinfer {
namespace {

struct NoScope {
  NoScope() {}
};

// One block of a weight row: Form::kBlockBytes bytes and the scale bytes of its four groups.
struct StoredBlock {
  const uint8_t* bytes;
  uint32_t scales;
};

// Whether n scales are 2^-40 to 2^40.
inline bool AreModerateScales(const uint8_t* scales, int64_t n) {
  const __m128i lowest = _mm_set1_epi8(87), most = _mm_set1_epi8(80);
  __m128i outside = _mm_setzero_si128();
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales + i));
    outside = _mm_or_si128(outside, _mm_subs_epu8(_mm_sub_epi8(v, lowest), most));
  }
  if (i < n) {
    uint32_t last[4] = {kUnitScales, kUnitScales, kUnitScales, kUnitScales};
    std::memcpy(last, scales + i, static_cast<size_t>(n - i));
    const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(last));
    outside = _mm_or_si128(outside, _mm_subs_epu8(_mm_sub_epi8(v, lowest), most));
  }
  return _mm_testz_si128(outside, outside) != 0;
}

template <class Form>
class StoredRows {
 public:
  // The last block of a row whose K ends inside it, with zeros behind the end.
  struct Tail {
    alignas(64) uint8_t bytes[Form::kBlockBytes];
  };

  explicit StoredRows(const WeightMatrix& w)
      : data_(static_cast<const uint8_t*>(w.data)),
        scales_(w.scales),
        groups_(w.in_features / 32),
        row_bytes_(w.in_features * Form::kBlockBytes / kDotBlock),
        full_blocks_(w.in_features / kDotBlock),
        blocks_((w.in_features + kDotBlock - 1) / kDotBlock) {}

  int64_t blocks() const { return blocks_; }

  bool HasModerateScales(int64_t n) const {
    if constexpr (Form::kIsScaled) return AreModerateScales(RowScales(n), groups_);
    return true;
  }

  StoredBlock Block(int64_t n, int64_t b, Tail* tail) const {
    StoredBlock block{data_ + n * row_bytes_ + b * Form::kBlockBytes, kUnitScales};
    if (b < full_blocks_) [[likely]] {
      if constexpr (Form::kIsScaled) std::memcpy(&block.scales, RowScales(n) + 4 * b, 4);
      return block;
    }
    const int64_t left = row_bytes_ - b * Form::kBlockBytes;
    std::memset(tail->bytes, 0, sizeof tail->bytes);
    std::memcpy(tail->bytes, block.bytes, static_cast<size_t>(left));
    if constexpr (Form::kIsScaled) {
      std::memcpy(&block.scales, RowScales(n) + 4 * b, static_cast<size_t>(groups_ - 4 * b));
    }
    block.bytes = tail->bytes;
    return block;
  }

 private:
  const uint8_t* RowScales(int64_t n) const {
    return scales_ + n / Form::kOutputsPerScale * groups_;
  }

  const uint8_t* data_;
  const uint8_t* scales_;
  int64_t groups_;
  int64_t row_bytes_;
  int64_t full_blocks_;
  int64_t blocks_;
};

template <int64_t kBytes>
void PrefetchBytes(const uint8_t* p) {
  for (int64_t line = 0; line < kBytes; line += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(p + line), _MM_HINT_T0);
  }
}

// All operands of one half of a block.
template <class Form>
void Decode(const uint8_t* block, int half, typename Form::Isa::Reg (&w)[Form::Isa::kSteps]) {
  const typename Form::Codes codes = Form::Load(block, half);
#pragma GCC unroll 8
  for (int s = 0; s < Form::Isa::kSteps; ++s) w[s] = Form::Operand(codes, s);
}

template <class Isa>
float SumLanes(const typename Isa::Acc (&acc)[Isa::kHalves]) {
  alignas(64) float lane[16];
  for (int h = 0; h < Isa::kHalves; ++h) Isa::Store(lane + h * Isa::kLanes, acc[h]);
  return Isa::LaneSum(lane);
}

// ---- by the letter ----

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

// Lane sums of one output of all rows, 16 floats each.
template <class Isa>
[[gnu::noinline]] void StoreLaneSums(const LinearTask& task, int64_t n, const float* acc,
                                     int64_t acc_stride) {
  for (int64_t m = 0; m < task.num_rows; ++m) {
    task.y[m][task.y_column + n - task.first_output] = Isa::LaneSum(acc + m * acc_stride);
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
  StoreLaneSums<Isa>(task, n, acc[0], 16);
}

// ---- few rows: weights are decoded in registers ----

// False if the weights hold a NaN that the operands do not show.
template <class Form, int kRows>
[[gnu::noinline]] bool StreamOutput(const LinearTask& task, const StoredRows<Form>& rows,
                                    int64_t n) {
  using Isa = typename Form::Isa;
  // Halves whose sums run side by side. They are chains, and a CPU looks ahead only so far for
  // operations that do not wait; but the sums of many rows are chains enough and need the
  // registers.
  constexpr int kTogether = kRows <= 2 ? Isa::kHalves : 1;
  const std::byte* x[kRows];
  typename Isa::Acc acc[kRows][Isa::kHalves];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
    x[m] = DotRowBlock<Isa>(task.x[m], 0);
#pragma GCC unroll 2
    for (int h = 0; h < Isa::kHalves; ++h) acc[m][h] = Isa::Zero();
  }
  typename Form::StreamWatch watch;
  typename StoredRows<Form>::Tail tail;
  for (int64_t b = 0; b < rows.blocks(); ++b) {
    const StoredBlock block = rows.Block(n, b, &tail);
    // Outputs lie one behind the other, so this runs ahead into the next ones.
    PrefetchBytes<Form::kBlockBytes>(block.bytes + Isa::kPrefetchBytes);
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
    task.y[m][task.y_column + n - task.first_output] = SumLanes<Isa>(acc[m]);
  }
  return !watch.SawNan();
}

template <class Form, int kRows>
void RunStream(const LinearTask& task, const StoredRows<Form>& rows) {
  if constexpr (kRows > 1) {
    if (task.num_rows < kRows) return RunStream<Form, kRows - 1>(task, rows);
  }
  const typename Form::StreamScope scope;
  bool is_moderate = false;
  for (int64_t n = task.first_output; n < task.first_output + task.num_outputs; ++n) {
    if (n == task.first_output || n % Form::kOutputsPerScale == 0) {
      is_moderate = rows.HasModerateScales(n);
    }
    if (!is_moderate || !StreamOutput<Form, kRows>(task, rows, n)) RunExactOutput(task, rows, n);
  }
}

// ---- many rows: a panel of outputs is decoded to the first-level cache ----

// acc[r][c] continues over `halves` halves of blocks. w: [halves][step][kTileOutputs] operands,
// x[r]: [halves][step] operands; acc: 16 lanes of every output, rows acc_stride floats apart.
template <class Isa, int kRows>
[[gnu::noinline]] void AccumulateTile(const typename Isa::Reg* w, const std::byte* const* x,
                                      int64_t x_offset, int64_t halves, float* acc,
                                      int64_t acc_stride) {
  constexpr int kOutputs = Isa::kTileOutputs;
  const std::byte* row[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) row[r] = x[r] + x_offset;
  for (int64_t i = 0; i < halves; ++i, w += Isa::kSteps * kOutputs) {
    typename Isa::Acc sum[kRows][kOutputs];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < kOutputs; ++c) sum[r][c] = Isa::Zero();
    }
#pragma GCC unroll 8
    for (int s = 0; s < Isa::kSteps; ++s) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const typename Isa::Reg value =
            Isa::LoadReg(row[r] + (i * Isa::kSteps + s) * Isa::kRegBytes);
#pragma GCC unroll 8
        for (int c = 0; c < kOutputs; ++c) {
          sum[r][c] = Isa::Step(sum[r][c], w[s * kOutputs + c], value);
        }
      }
    }
    float* total = acc + i % Isa::kHalves * Isa::kLanes;
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < kOutputs; ++c) {
        float* lanes = total + r * acc_stride + 16 * c;
        Isa::Store(lanes, Isa::Add(Isa::Load(lanes), sum[r][c]));
      }
    }
  }
}

// AccumulateTile for 1..kMaxRows rows known at run time.
template <class Isa, int kMaxRows>
void AccumulateRows(int64_t rows, const typename Isa::Reg* w, const std::byte* const* x,
                    int64_t x_offset, int64_t halves, float* acc, int64_t acc_stride) {
  if constexpr (kMaxRows > 1) {
    if (rows < kMaxRows) {
      return AccumulateRows<Isa, kMaxRows - 1>(rows, w, x, x_offset, halves, acc, acc_stride);
    }
  }
  AccumulateTile<Isa, kMaxRows>(w, x, x_offset, halves, acc, acc_stride);
}

// Up to kOutputs outputs of up to kRows rows. The values of a chunk of K stay in the second-level
// cache for all panels, the sums for all chunks.
template <class Form>
class PanelGroup {
 public:
  using Isa = typename Form::Isa;
  using Reg = typename Isa::Reg;
  static constexpr int64_t kOutputs = 4 * Isa::kPanelOutputs;
  static constexpr int64_t kRows = 64;

  PanelGroup(const LinearTask& task, const StoredRows<Form>& rows) : task_(task), rows_(rows) {
    static_assert(Isa::kPanelOutputs % Isa::kTileOutputs == 0);
  }

  // All outputs of the task. False, and no result, if a weight is not moderate.
  bool Run() {
    const int64_t end = task_.first_output + task_.num_outputs;
    for (int64_t n = task_.first_output; n < end; ++n) {
      if (!rows_.HasModerateScales(n)) return false;
    }
    std::memset(acc_, 0, static_cast<size_t>(task_.num_rows) * sizeof acc_[0]);
    // Outputs that fill up the last tile.
    std::memset(static_cast<void*>(weights_), 0, sizeof weights_);
    for (int64_t b = 0; b < rows_.blocks(); b += Isa::kChunkBlocks) {
      const int64_t left = rows_.blocks() - b;
      const int64_t blocks = left < Isa::kChunkBlocks ? left : Isa::kChunkBlocks;
      for (int64_t c = 0; c < task_.num_outputs; c += Isa::kPanelOutputs) {
        const int64_t rest = task_.num_outputs - c;
        const int64_t count = rest < Isa::kPanelOutputs ? rest : Isa::kPanelOutputs;
        if (!DecodePanel(c, count, b, blocks)) return false;
        const FlushDenormalsScope flush;
        AccumulatePanel(c, count, b, blocks);
      }
    }
    const FlushDenormalsScope flush;
    for (int64_t c = 0; c < task_.num_outputs; ++c) {
      StoreLaneSums<Isa>(task_, task_.first_output + c, acc_[0] + 16 * c, 16 * kOutputs);
    }
    return true;
  }

 private:
  static constexpr int64_t kTiles = Isa::kPanelOutputs / Isa::kTileOutputs;
  static constexpr int64_t kTileRegs =
      Isa::kChunkBlocks * Isa::kHalves * Isa::kSteps * Isa::kTileOutputs;

  // Outputs c.. of the task. Multiplies denormals, so it must stay outside of scopes that flush.
  [[gnu::noinline]] bool DecodePanel(int64_t c0, int64_t count, int64_t b0, int64_t blocks) {
    typename Form::PanelWatch watch;
    typename StoredRows<Form>::Tail tail;
    for (int64_t c = 0; c < count; ++c) {
      Reg* out = weights_[c / Isa::kTileOutputs] + c % Isa::kTileOutputs;
      for (int64_t b = b0; b < b0 + blocks; ++b) {
        const StoredBlock block = rows_.Block(task_.first_output + c0 + c, b, &tail);
        // The next chunk of the output comes up after this one has met all rows.
        PrefetchBytes<Form::kBlockBytes>(block.bytes + Form::kBlockBytes * Isa::kChunkBlocks);
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

  void AccumulatePanel(int64_t c0, int64_t count, int64_t b0, int64_t blocks) {
    const int64_t tiles = (count + Isa::kTileOutputs - 1) / Isa::kTileOutputs;
    const int64_t x_offset = kDotHeaderBytes + b0 * Isa::kBlockBytes;
    for (int64_t m = 0; m < task_.num_rows; m += Isa::kTileRows) {
      const int64_t left = task_.num_rows - m;
      for (int64_t tile = 0; tile < tiles; ++tile) {
        float* acc = acc_[m] + 16 * (c0 + tile * Isa::kTileOutputs);
        AccumulateRows<Isa, Isa::kTileRows>(left < Isa::kTileRows ? left : Isa::kTileRows,
                                            weights_[tile], task_.x + m, x_offset,
                                            blocks * Isa::kHalves, acc, 16 * kOutputs);
      }
    }
  }

  const LinearTask& task_;
  const StoredRows<Form>& rows_;
  alignas(64) Reg weights_[kTiles][kTileRegs];
  alignas(64) float acc_[kRows][16 * kOutputs];
};

template <class Form>
void RunPanels(const LinearTask& task, const StoredRows<Form>& rows) {
  using Group = PanelGroup<Form>;
  const int64_t end = task.first_output + task.num_outputs;
  for (int64_t m = 0; m < task.num_rows; m += Group::kRows) {
    for (int64_t n = task.first_output; n < end; n += Group::kOutputs) {
      LinearTask part = task;
      part.num_rows = task.num_rows - m < Group::kRows ? task.num_rows - m : Group::kRows;
      part.x = task.x + m;
      part.y = task.y + m;
      part.y_column = task.y_column + n - task.first_output;
      part.first_output = n;
      part.num_outputs = end - n < Group::kOutputs ? end - n : Group::kOutputs;
      Group group(part, rows);
      if (group.Run()) continue;
      for (int64_t c = 0; c < part.num_outputs; ++c) RunExactOutput(part, rows, n + c);
    }
  }
}

// ---- dispatch ----

template <class Form>
void RunForm(const LinearTask& task) {
  const StoredRows<Form> rows(*task.weight);
  if constexpr (requires { RunIntegers(task, rows); }) {
    if (RunIntegers(task, rows)) return;
  }
  if (task.num_rows <= Form::Isa::kMaxStreamRows) {
    RunStream<Form, Form::Isa::kMaxStreamRows>(task, rows);
  } else {
    RunPanels(task, rows);
  }
}

// Rows that are not moderate are set apart, so that they slow down nobody else.
template <class Form>
void RunScaledForm(const LinearTask& task) {
  const std::byte* x[kMaxTaskRows];
  float* y[kMaxTaskRows];
  int64_t num_moderate = 0, num_extreme = 0;
  for (int64_t m = 0; m < task.num_rows; ++m) {
    const int64_t place =
        IsModerateRow(task.x[m]) ? num_moderate++ : kMaxTaskRows - 1 - num_extreme++;
    x[place] = task.x[m];
    y[place] = task.y[m];
  }
  LinearTask part = task;
  part.num_rows = num_moderate;
  part.x = x;
  part.y = y;
  if (num_moderate > 0) RunForm<Form>(part);
  if (num_extreme == 0) return;
  part.num_rows = num_extreme;
  part.x = x + kMaxTaskRows - num_extreme;
  part.y = y + kMaxTaskRows - num_extreme;
  const StoredRows<Form> rows(*task.weight);
  for (int64_t n = 0; n < task.num_outputs; ++n) {
    RunExactOutput(part, rows, task.first_output + n);
  }
}

template <class Fp8Form, class Fp4Form, class Bf16Form>
void RunDotTask(const LinearTask& task) {
  switch (task.weight->format) {
    case WeightFormat::kFp8Block32:
      return RunScaledForm<Fp8Form>(task);
    case WeightFormat::kFp4Group32:
      return RunScaledForm<Fp4Form>(task);
    case WeightFormat::kBf16:
      return RunForm<Bf16Form>(task);
    case WeightFormat::kF32:
    case WeightFormat::kFp8Group32:
      break;  // not a weight of this family (ops.h)
  }
}

template <class Fp8Form, class Fp4Form, class Bf16Form>
void FillDot(LinearKernels* kernels) {
  kernels->bf16dot = RunDotTask<Fp8Form, Fp4Form, Bf16Form>;
  kernels->dot_block_bytes = Fp8Form::Isa::kBlockBytes;
  kernels->expand_fp8 = ExpandFp8<Fp8Form, Bf16Form>;
  kernels->expand_bf16 = ExpandBf16<Bf16Form>;
}

}  // namespace
}  // namespace deepinfer
