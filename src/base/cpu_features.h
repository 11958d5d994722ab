// Instruction sets this CPU and operating system offer, and the kernel level they allow.
// Thread rule: pure functions.
#pragma once

#include <optional>
#include <string_view>

namespace deepinfer {

// Kernel levels in ascending order; each includes the ones before it.
enum class IsaLevel : unsigned char {
  kScalar,      // plain loops: the reference
  kAvx2,        // AVX2 and FMA
  kAvx512,      // F, BW, VL, DQ, VBMI
  kAvx512Bf16,  // plus vdpbf16ps
};

std::string_view IsaLevelName(IsaLevel level);

// "scalar", "avx2", "avx512", "avx512_bf16"; nullopt for another word.
std::optional<IsaLevel> ParseIsaLevel(std::string_view name);

// Highest level that the running CPU supports.
IsaLevel DetectIsaLevel();

}  // namespace deepinfer
