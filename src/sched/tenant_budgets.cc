#include "sched/tenant_budgets.h"

#include <algorithm>

namespace deepinfer {

namespace {

// Buckets are looked through for full ones when there are so many more of them.
constexpr size_t kPruneEvery = 1024;

}  // namespace

double TenantBudgets::LevelAt(const Bucket& bucket, int64_t now_us) const {
  const auto since_us = static_cast<double>(std::max<int64_t>(0, now_us - bucket.filled_us));
  return std::min(options_.burst_us, bucket.level_us + options_.rate * since_us);
}

double TenantBudgets::WaitUs(uint64_t tenant, double ahead_us, int64_t now_us) const {
  if (!limits()) return 0;
  const auto it = buckets_.find(tenant);
  const double level_us = it == buckets_.end() ? options_.burst_us : LevelAt(it->second, now_us);
  return std::max(0.0, (ahead_us - level_us) / options_.rate);
}

void TenantBudgets::Charge(uint64_t tenant, double cost_us, int64_t now_us) {
  if (!limits()) return;
  auto [it, is_new] = buckets_.try_emplace(tenant, Bucket{options_.burst_us, now_us});
  it->second = {LevelAt(it->second, now_us) - cost_us, now_us};
  if (!is_new || buckets_.size() % kPruneEvery != 0) return;
  std::erase_if(buckets_, [&](const auto& entry) {
    return LevelAt(entry.second, now_us) >= options_.burst_us;
  });
}

}  // namespace deepinfer
