#include "base/cpu_features.h"

namespace deepinfer {

std::string_view IsaLevelName(IsaLevel level) {
  switch (level) {
    case IsaLevel::kScalar:
      return "scalar";
    case IsaLevel::kAvx2:
      return "avx2";
    case IsaLevel::kAvx512:
      return "avx512";
    case IsaLevel::kAvx512Bf16:
      return "avx512_bf16";
  }
  return "scalar";
}

std::optional<IsaLevel> ParseIsaLevel(std::string_view name) {
  for (IsaLevel level :
       {IsaLevel::kScalar, IsaLevel::kAvx2, IsaLevel::kAvx512, IsaLevel::kAvx512Bf16}) {
    if (IsaLevelName(level) == name) return level;
  }
  return std::nullopt;
}

IsaLevel DetectIsaLevel() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return IsaLevel::kScalar;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vbmi");
  if (!avx512) return IsaLevel::kAvx2;
  return __builtin_cpu_supports("avx512bf16") ? IsaLevel::kAvx512Bf16 : IsaLevel::kAvx512;
}

}  // namespace deepinfer
