#include <string>

#include "kernels/backends.h"
#include "kernels/cpu/cpu_operators.h"
#include "kernels/cpu/levels.h"
#include "kernels/reference/reference_operators.h"

namespace deepinfer {

namespace {

CpuKernels MakeAvx2Kernels() {
  CpuKernels kernels;
  FillLinearAvx2(&kernels.linear);
  FillRowAvx2(&kernels.row);
  FillAttentionAvx2(&kernels.attention);
  FillIndexAvx2(&kernels.index);
  return kernels;
}

CpuKernels MakeAvx512Kernels(bool has_bf16) {
  CpuKernels kernels;
  if (has_bf16) {
    FillLinearAvx512Bf16(&kernels.linear);
    FillAttentionAvx512Bf16(&kernels.attention);
  } else {
    FillLinearAvx512(&kernels.linear);
    FillAttentionAvx512(&kernels.attention);
  }
  FillRowAvx512(&kernels.row);
  FillIndexAvx512(&kernels.index);
  return kernels;
}

// A table is made when its level is first asked for: the code that fills it may use the level's own
// instructions, which a lesser CPU does not have.
const CpuKernels& KernelsOf(IsaLevel level) {
  switch (level) {
    case IsaLevel::kAvx512Bf16: {
      static const CpuKernels kernels = MakeAvx512Kernels(true);
      return kernels;
    }
    case IsaLevel::kAvx512: {
      static const CpuKernels kernels = MakeAvx512Kernels(false);
      return kernels;
    }
    case IsaLevel::kScalar:
    case IsaLevel::kAvx2:
      break;
  }
  static const CpuKernels kernels = MakeAvx2Kernels();
  return kernels;
}

}  // namespace

std::unique_ptr<Operators> MakeReferenceOperators() {
  return std::make_unique<ReferenceOperators>();
}

Result<std::unique_ptr<Operators>> MakeCpuOperators(IsaLevel level, ThreadPool* pool) {
  if (level > DetectIsaLevel()) {
    return Unsupported("this CPU has no " + std::string(IsaLevelName(level)));
  }
  if (level == IsaLevel::kScalar) return MakeReferenceOperators();
  return std::unique_ptr<Operators>(std::make_unique<CpuOperators>(KernelsOf(level), pool));
}

}  // namespace deepinfer
