#include "model/numerics.h"

namespace deepinfer {

namespace {
// Raised whenever a rounding constant or an accumulation order changes.
constexpr std::string_view kRevision = "r2";
}  // namespace

std::string_view NumericsName(Numerics numerics) {
  return numerics == Numerics::kRef ? "ref" : "ref_actq";
}

std::optional<Numerics> ParseNumerics(std::string_view name) {
  for (Numerics n : {Numerics::kRef, Numerics::kRefActq}) {
    if (NumericsName(n) == name) return n;
  }
  return std::nullopt;
}

std::string NumericsId(Numerics numerics, std::string_view kernel_family) {
  return "v41-" + std::string(NumericsName(numerics)) + "-" + std::string(kernel_family) + "-" +
         std::string(kRevision);
}

}  // namespace deepinfer
