// Constructors of the operator backends (dispatch.cc).
// Thread rule: any thread; the pool must outlive the backend.
#pragma once

#include <memory>

#include "base/cpu_features.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "kernels/ops.h"

namespace deepinfer {

// Plain loops, single-threaded: the oracle of every other backend.
std::unique_ptr<Operators> MakeReferenceOperators();

// CPU kernels of the given level; the same bits as the reference at every level. unsupported when
// the running CPU lacks the instructions. The pool is borrowed.
Result<std::unique_ptr<Operators>> MakeCpuOperators(IsaLevel level, ThreadPool* pool);

}  // namespace deepinfer
