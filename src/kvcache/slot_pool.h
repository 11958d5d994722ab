// State slots of fixed size, lent to live sequences by number. Bookkeeping only.
// Thread rule: one thread, the engine's. Owner: the engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace deepinfer {

class SlotPool {
 public:
  explicit SlotPool(int32_t num_slots);

  // A free slot 0 .. num_slots - 1, the one given back last (its memory is warm); -1 when all are
  // lent.
  int32_t Acquire();
  // Gives a lent slot back.
  void Release(int32_t slot);

  int32_t num_slots() const { return static_cast<int32_t>(lent_.size()); }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  // acquired - released is the number of lent slots.
  int64_t acquired() const { return acquired_; }
  int64_t released() const { return released_; }

 private:
  std::vector<bool> lent_;
  std::vector<int32_t> free_;
  int64_t acquired_ = 0;
  int64_t released_ = 0;
};

}  // namespace deepinfer
