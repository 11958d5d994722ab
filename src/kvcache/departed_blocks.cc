#include "kvcache/departed_blocks.h"

#include <cstring>

#include "base/check.h"

namespace deepinfer {
namespace {

constexpr uint64_t kEvictedBit = 1;

// Another part of the key than the index uses. Its lowest bit is given up.
uint64_t TagOf(const BlockKey& key) {
  uint64_t word;
  std::memcpy(&word, key.bytes.data() + 2 * sizeof(word), sizeof(word));
  return word & ~kEvictedBit;
}

}  // namespace

void DepartedBlocks::Note(const BlockKey& key, MissReason reason) {
  DI_CHECK(reason == MissReason::kExpired || reason == MissReason::kEvictedEarly);
  const uint64_t tag = TagOf(key);
  const std::lock_guard lock(mutex_);
  if (places_.empty()) places_.resize(kPlaces);
  places_[(tag >> 1) % kPlaces] = tag | (reason == MissReason::kEvictedEarly ? kEvictedBit : 0);
}

MissReason DepartedBlocks::ReasonOf(const BlockKey& key) const {
  const uint64_t tag = TagOf(key);
  const std::lock_guard lock(mutex_);
  if (places_.empty()) return MissReason::kAbsent;
  const uint64_t place = places_[(tag >> 1) % kPlaces];
  if (place == 0 || (place & ~kEvictedBit) != tag) return MissReason::kAbsent;
  return (place & kEvictedBit) != 0 ? MissReason::kEvictedEarly : MissReason::kExpired;
}

}  // namespace deepinfer
