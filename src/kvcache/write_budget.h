// How much may be written per day without wearing the device out before its time: a token bucket.
// As it runs dry, admission turns selective: first for batch, then agent, then chat, and then only
// for blocks that are offered a second time (kv_format.md §19).
// Thread rule: any thread, one lock. Owner: the store.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>

#include "kvcache/format.h"

namespace deepinfer {

class WriteBudget {
 public:
  // bytes_per_day 0: no limit. The bucket begins full and holds the budget of two hours. What is
  // admitted is a record, and overdraws it by no more than half of it, nor by more than a segment.
  WriteBudget(int64_t bytes_per_day, int64_t record_bytes, int64_t segment_bytes, int64_t now_us);

  // May a new block of this class be written? Then its record is charged at once, so that a burst
  // of offers cannot be admitted by a budget that only the first of them had.
  bool Admit(RetentionClass retention, const BlockKey& key, int64_t now_us);
  // The same for a copy of a stored block, while the bucket is not overdrawn too far.
  bool AdmitCopy(int64_t now_us);
  // A record that has to be written whatever is left: what an operator or an erasure orders. What
  // is overdrawn has to come in before anything else is admitted.
  void ChargeOrdered(int64_t now_us);
  // A charged record was not written.
  void Refund();
  // Share of the bucket that is left, below 0 when overdrawn; 1 without a limit.
  double Level(int64_t now_us) const;

 private:
  static constexpr size_t kNumSightings = 65'536;

  void Refill(int64_t now_us);
  // Under the lock, after Refill.
  bool Take();
  // Counts an offer of the key; true when it was offered before, as far as remembered.
  bool SeenBefore(const BlockKey& key);

  const double bytes_per_us_;
  const double capacity_bytes_;
  const double record_bytes_;
  const double most_overdrawn_bytes_;
  mutable std::mutex mutex_;
  double left_bytes_;
  int64_t refilled_us_;
  // Direct-mapped: a later key takes the place of an earlier one.
  std::unique_ptr<std::array<uint64_t, kNumSightings>> sightings_;
};

}  // namespace deepinfer
