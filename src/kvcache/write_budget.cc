#include "kvcache/write_budget.h"

#include <algorithm>
#include <limits>

namespace deepinfer {
namespace {

constexpr double kUsPerDay = 24.0 * 3600 * 1e6;
constexpr double kBurstDays = 2.0 / 24;
// Level of the bucket below which a class is admitted selectively. Batch is computed again at
// leisure, chat is what people wait for.
constexpr std::array<double, kNumRetentionClasses> kSelectiveBelow = {
    0.5, 0.25, 0.0, -std::numeric_limits<double>::infinity()};

}  // namespace

WriteBudget::WriteBudget(int64_t bytes_per_day, int64_t record_bytes, int64_t segment_bytes,
                         int64_t now_us)
    : bytes_per_us_(static_cast<double>(bytes_per_day) / kUsPerDay),
      capacity_bytes_(static_cast<double>(bytes_per_day) * kBurstDays),
      record_bytes_(static_cast<double>(record_bytes)),
      // A record at least: the smallest budget lets one through once it has come in.
      most_overdrawn_bytes_(std::max(
          record_bytes_, std::min(static_cast<double>(segment_bytes), capacity_bytes_ / 2))),
      left_bytes_(capacity_bytes_),
      refilled_us_(now_us),
      sightings_(std::make_unique<std::array<uint64_t, kNumSightings>>()) {}

void WriteBudget::Refill(int64_t now_us) {
  const auto passed_us = static_cast<double>(std::max<int64_t>(0, now_us - refilled_us_));
  left_bytes_ = std::min(capacity_bytes_, left_bytes_ + passed_us * bytes_per_us_);
  refilled_us_ = std::max(refilled_us_, now_us);
}

bool WriteBudget::SeenBefore(const BlockKey& key) {
  const uint64_t prefix = key.Prefix64();
  uint64_t& place = (*sightings_)[prefix % kNumSightings];
  const bool seen = place == prefix;
  place = prefix;
  return seen;
}

bool WriteBudget::Admit(RetentionClass retention, const BlockKey& key, int64_t now_us) {
  if (capacity_bytes_ <= 0) return true;
  const std::lock_guard lock(mutex_);
  Refill(now_us);
  const bool is_free =
      left_bytes_ / capacity_bytes_ > kSelectiveBelow[static_cast<size_t>(retention)];
  return (is_free || SeenBefore(key)) && Take();
}

bool WriteBudget::AdmitCopy(int64_t now_us) {
  if (capacity_bytes_ <= 0) return true;
  const std::lock_guard lock(mutex_);
  Refill(now_us);
  return Take();
}

bool WriteBudget::Take() {
  if (left_bytes_ - record_bytes_ < -most_overdrawn_bytes_) return false;
  left_bytes_ -= record_bytes_;
  return true;
}

void WriteBudget::ChargeOrdered(int64_t now_us) {
  if (capacity_bytes_ <= 0) return;
  const std::lock_guard lock(mutex_);
  Refill(now_us);
  left_bytes_ -= record_bytes_;
}

void WriteBudget::Refund() {
  if (capacity_bytes_ <= 0) return;
  const std::lock_guard lock(mutex_);
  left_bytes_ = std::min(capacity_bytes_, left_bytes_ + record_bytes_);
}

double WriteBudget::Level(int64_t now_us) const {
  if (capacity_bytes_ <= 0) return 1;
  const std::lock_guard lock(mutex_);
  const auto passed_us = static_cast<double>(std::max<int64_t>(0, now_us - refilled_us_));
  return std::min(capacity_bytes_, left_bytes_ + passed_us * bytes_per_us_) / capacity_bytes_;
}

}  // namespace deepinfer
