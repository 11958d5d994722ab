// Why blocks left the index, for the latest ones that fit: so that a lookup can say whether a block
// that it misses had expired or was evicted (kv_format.md §20). It may forget, and then says
// absent. Thread rule: any thread, one lock. Owner: the store.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "kvcache/keys.h"
#include "kvcache/miss_reason.h"

namespace deepinfer {

class DepartedBlocks {
 public:
  // reason: kExpired or kEvictedEarly.
  void Note(const BlockKey& key, MissReason reason);
  // kAbsent for blocks that were never noted or whose place another one has taken.
  MissReason ReasonOf(const BlockKey& key) const;

 private:
  // One word each, 1 MiB together: the blocks of about 50 segments of the released layout.
  static constexpr size_t kPlaces = size_t{1} << 17;

  mutable std::mutex mutex_;
  // Part of the key; the lowest bit says evicted. 0: empty. Allocated with the first block.
  std::vector<uint64_t> places_;
};

}  // namespace deepinfer
