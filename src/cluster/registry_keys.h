// Keys of the registry (docs/cluster.md §7).
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>

namespace deepinfer {

// One past the last key that begins with the prefix, in the order of bytes.
std::string PrefixEnd(std::string prefix);

// Of all workers of a cell, and of one. Names must not be empty and hold no '/'.
std::string WorkerPrefix(const std::string& cluster, const std::string& cell);
std::string WorkerKey(const std::string& cluster, const std::string& cell, const std::string& node,
                      uint64_t incarnation);

}  // namespace deepinfer
