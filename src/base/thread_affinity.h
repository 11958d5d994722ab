// Keeps the workers of a thread pool on chosen CPUs.
// Thread rule: by the pool's caller, between jobs.
#pragma once

#include <span>

#include "base/thread_pool.h"

namespace deepinfer {

// Worker i, counted from 1, stays on cpus[i]; cpus[0] is left to the caller, whose affinity does
// not change. Does nothing unless there is a CPU for every thread. A CPU that the process may no
// longer use leaves its worker where it is: that costs speed only.
void PinWorkers(ThreadPool* pool, std::span<const int> cpus);

}  // namespace deepinfer
