// Arithmetic of the model: which points round and which kernel family computes (model.md §1).
// Thread rule: values.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace deepinfer {

enum class Numerics : unsigned char {
  kRef,      // fp32 activations everywhere: the test oracle
  kRefActq,  // FP8 activations before every FP8/FP4 linear: the official inference arithmetic
};

// "ref", "ref_actq".
std::string_view NumericsName(Numerics numerics);

// nullopt for an unknown word.
std::optional<Numerics> ParseNumerics(std::string_view name);

// Identity of the arithmetic: two workers may exchange KV only if their ids are equal
// (numerics.md §1). Example: "v41-ref_actq-f32fma+bf16dot-r2".
std::string NumericsId(Numerics numerics, std::string_view kernel_family);

}  // namespace deepinfer
