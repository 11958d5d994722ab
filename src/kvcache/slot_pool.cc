#include "kvcache/slot_pool.h"

#include "base/check.h"

namespace deepinfer {

SlotPool::SlotPool(int32_t num_slots) : lent_(static_cast<size_t>(num_slots), false) {
  free_.reserve(lent_.size());
  for (int32_t slot = num_slots - 1; slot >= 0; --slot) free_.push_back(slot);
}

int32_t SlotPool::Acquire() {
  if (free_.empty()) return -1;
  const int32_t slot = free_.back();
  free_.pop_back();
  lent_[static_cast<size_t>(slot)] = true;
  ++acquired_;
  return slot;
}

void SlotPool::Release(int32_t slot) {
  DI_CHECK(slot >= 0 && slot < num_slots() && lent_[static_cast<size_t>(slot)]);
  lent_[static_cast<size_t>(slot)] = false;
  free_.push_back(slot);
  ++released_;
}

}  // namespace deepinfer
