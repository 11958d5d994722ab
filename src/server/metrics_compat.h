// Which of our series are also exported under the names of vLLM, so that existing dashboards and
// load generators work (api.md §16).
// Thread rule: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace deepinfer {

enum class MetricsCompat : unsigned char { kNone, kVllm };

// All names a series is exported under; the native one, deepinfer:<name>, comes first.
std::vector<std::string> ExportedNames(std::string_view name, MetricsCompat compat);

}  // namespace deepinfer
