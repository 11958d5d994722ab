#include "tensor/dtype.h"

#include <array>
#include <cstddef>

namespace deepinfer {
namespace {

struct DTypeInfo {
  std::string_view name;
  int bits;
};

// Indexed by DType.
constexpr std::array<DTypeInfo, kNumDTypes> kDTypeInfo = {{
    {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E5M2FNUZ", 8},
    {"F8_E4M3FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
    {"I32", 32},        {"U32", 32},    {"F32", 32},    {"I64", 64},    {"U64", 64},
    {"F64", 64},        {"C64", 64},
}};

}  // namespace

std::string_view DTypeName(DType dtype) { return kDTypeInfo[static_cast<size_t>(dtype)].name; }

std::optional<DType> DTypeFromName(std::string_view name) {
  for (size_t i = 0; i < kDTypeInfo.size(); ++i) {
    if (kDTypeInfo[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

int DTypeBits(DType dtype) { return kDTypeInfo[static_cast<size_t>(dtype)].bits; }

}  // namespace deepinfer
