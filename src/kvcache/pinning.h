// Keeping chosen blocks until further notice: copies of them in the class that never expires
// (kv_format.md §23).
// Thread rule: one thread, the only user of a store without background threads.
#pragma once

#include <cstdint>
#include <span>

#include "kvcache/kv_store.h"
#include "kvcache/store_inspector.h"

namespace deepinfer {

// Copies the blocks that are stored into class `pinned` and commits; the number copied. Blocks with
// a deadline of their own and those that are pinned already are left as they are.
Result<int64_t> PinBlocks(KvStore* store, std::span<const ChainBlock> blocks);

// Ends it: the blocks become ones of class `chat`, used now. The number of blocks.
Result<int64_t> UnpinBlocks(KvStore* store, std::span<const ChainBlock> blocks);

}  // namespace deepinfer
