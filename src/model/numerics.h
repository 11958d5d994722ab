// Arithmetic of the model: which points round and which kernel family computes (model.md §1).
// Thread rule: values.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "kernels/ops.h"

namespace deepinfer {

enum class Numerics : unsigned char {
  kRef,      // fp32 activations everywhere: the test oracle
  kRefActq,  // FP8 activations before every FP8/FP4 linear: the official inference arithmetic
  kProd,     // kRefActq with a bf16 stream: the serving arithmetic
};

// Where kProd rounds and kRefActq does not. Tests switch them off; with all off the bits are those
// of kRefActq.
struct ProdDeviations {
  bool stream_bf16 = true;        // stream, results, gate and up; bf16 weights in bf16dot
  bool wo_a_fp8 = true;           // input and result of wo_a
  bool probs_bf16 = true;         // softmax weights; takes effect with stream_bf16 only
  bool fp4_by_reciprocal = true;  // codes of compressed entries (model.md §11.4)

  bool operator==(const ProdDeviations&) const = default;
};

// A mode in the terms of the operators.
struct Arithmetic {
  bool fp8_activations = false;  // FP8 rows before FP8 and FP4 linears
  // R(x); kBf16 also moves the linears with bf16 weights to the bf16dot family.
  Rounding stream = Rounding::kNone;
  bool engram_stored_rows = false;  // the table's codes and scales are fed as they are
  bool wo_a_fp8 = false;
  Rounding attention_weights = Rounding::kNone;
  bool fp4_by_reciprocal = false;
};

// deviations: read in kProd only.
Arithmetic ArithmeticOf(Numerics numerics, const ProdDeviations& deviations);

// "ref", "ref_actq", "prod".
std::string_view NumericsName(Numerics numerics);

// nullopt for an unknown word.
std::optional<Numerics> ParseNumerics(std::string_view name);

// Identity of the arithmetic: two workers may exchange KV only if their ids are equal
// (numerics.md §1). Example: "v41-prod-f32fma+bf16dot-r2"; deviations switched off are named.
std::string NumericsId(Numerics numerics, const ProdDeviations& deviations,
                       std::string_view kernel_family);

}  // namespace deepinfer
