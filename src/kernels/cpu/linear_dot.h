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

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/linear_dot_exact.h"
#include "kernels/cpu/linear_dot_panels.h"
#include "kernels/cpu/linear_dot_rows.h"
#include "kernels/cpu/linear_dot_stream.h"
#include "kernels/cpu/linear_dot_weights.h"

namespace deepinfer {
namespace {

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
