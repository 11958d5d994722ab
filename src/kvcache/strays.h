// Segment files that nobody reads any more: in quarantine since an earlier process, or of another
// version or layout (kv_format.md §19). They are kept for people to look at, but not for ever.
// Thread rule: one thread, the janitor's.
#pragma once

#include <string>
#include <vector>

#include "kvcache/store_context.h"

namespace deepinfer {

// Removes those of the folders, which this process owns, that have not changed for the longest time
// to live of a class, pinned blocks aside, or none where a class lives for ever; their number.
int64_t RemoveOldStrays(StoreContext* context, const std::vector<std::string>& folders);

}  // namespace deepinfer
