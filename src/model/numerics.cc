#include "model/numerics.h"

namespace deepinfer {

namespace {
// Raised whenever a rounding constant or an accumulation order changes.
constexpr std::string_view kRevision = "r2";
}  // namespace

Arithmetic ArithmeticOf(Numerics numerics, const ProdDeviations& deviations) {
  Arithmetic a;
  a.fp8_activations = numerics != Numerics::kRef;
  if (numerics != Numerics::kProd) return a;
  a.engram_stored_rows = true;
  if (deviations.stream_bf16) a.stream = Rounding::kBf16;
  if (deviations.stream_bf16 && deviations.probs_bf16) a.attention_weights = Rounding::kBf16;
  a.wo_a_fp8 = deviations.wo_a_fp8;
  a.fp4_by_reciprocal = deviations.fp4_by_reciprocal;
  return a;
}

std::string_view NumericsName(Numerics numerics) {
  switch (numerics) {
    case Numerics::kRef:
      return "ref";
    case Numerics::kRefActq:
      return "ref_actq";
    case Numerics::kProd:
      return "prod";
  }
  return "";
}

std::optional<Numerics> ParseNumerics(std::string_view name) {
  for (Numerics n : {Numerics::kRef, Numerics::kRefActq, Numerics::kProd}) {
    if (NumericsName(n) == name) return n;
  }
  return std::nullopt;
}

std::string NumericsId(Numerics numerics, const ProdDeviations& deviations,
                       std::string_view kernel_family) {
  std::string id = "v41-" + std::string(NumericsName(numerics)) + "-" + std::string(kernel_family) +
                   "-" + std::string(kRevision);
  if (numerics != Numerics::kProd) return id;
  if (!deviations.stream_bf16) id += "-no_stream_bf16";
  if (!deviations.wo_a_fp8) id += "-no_wo_a_fp8";
  if (!deviations.probs_bf16) id += "-no_probs_bf16";
  if (!deviations.fp4_by_reciprocal) id += "-no_fp4_by_reciprocal";
  return id;
}

}  // namespace deepinfer
