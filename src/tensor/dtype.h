// Element types of stored tensors, named as in the safetensors format.
// Thread rule: values, no shared state.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace deepinfer {

enum class DType : uint8_t {
  kBool,
  kF4,  // E2M1, two elements a byte
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,  // E4M3FN: no infinity, NaN = 0x7F and 0xFF
  kF8E8M0,  // UE8M0: a power of two, 255 = NaN
  kF8E5M2Fnuz,
  kF8E4M3Fnuz,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64,
  kC64,  // two F32
};

inline constexpr int kNumDTypes = static_cast<int>(DType::kC64) + 1;

// "F8_E4M3", "BF16", ... exactly as written in a safetensors header.
std::string_view DTypeName(DType dtype);

// Exact, case-sensitive inverse of DTypeName; nullopt for an unknown name.
std::optional<DType> DTypeFromName(std::string_view name);

// Bits of one element; 4 and 6 for the sub-byte floats.
int DTypeBits(DType dtype);

}  // namespace deepinfer
