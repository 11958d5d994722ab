// Who a process is: random per start, so that a restarted one is never taken for its predecessor
// (docs/cluster.md §2).
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>

namespace deepinfer {

// Never 0.
uint64_t NewIncarnation();

// Equal in processes that can share memory: the same kernel and the same process namespace.
std::string HostId();

}  // namespace deepinfer
