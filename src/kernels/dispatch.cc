#include "kernels/backends.h"
#include "kernels/reference/reference_operators.h"

namespace deepinfer {

std::unique_ptr<Operators> MakeReferenceOperators() {
  return std::make_unique<ReferenceOperators>();
}

Result<std::unique_ptr<Operators>> MakeCpuOperators(IsaLevel level, ThreadPool* pool) {
  static_cast<void>(pool);
  if (level > DetectIsaLevel()) {
    return Unsupported("this CPU has no " + std::string(IsaLevelName(level)));
  }
  return MakeReferenceOperators();
}

}  // namespace deepinfer
