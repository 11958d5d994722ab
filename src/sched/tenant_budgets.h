// How much of the workers each tenant may use, in predicted cost: a bucket that fills evenly. What
// is known only afterwards may leave it in debt, which the tenant's next requests wait out.
// Thread rule: one owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

namespace deepinfer {

class TenantBudgets {
 public:
  struct Options {
    double rate = 0;      // of cost per time, 1: all of one worker; 0: no budgets
    double burst_us = 0;  // cost that a full bucket holds
  };

  explicit TenantBudgets(const Options& options) : options_(options) {}

  bool limits() const { return options_.rate > 0; }
  // Not in debt.
  bool Allows(uint64_t tenant, int64_t now_us) const { return WaitUs(tenant, 0, now_us) <= 0; }
  // Until it may begin something after `ahead_us` of its own work; 0: at once.
  double WaitUs(uint64_t tenant, double ahead_us, int64_t now_us) const;
  // A negative cost gives back.
  void Charge(uint64_t tenant, double cost_us, int64_t now_us);

  size_t size() const { return buckets_.size(); }

 private:
  struct Bucket {
    double level_us = 0;
    int64_t filled_us = 0;
  };
  double LevelAt(const Bucket& bucket, int64_t now_us) const;

  const Options options_;
  std::unordered_map<uint64_t, Bucket> buckets_;  // of tenants that are not known to be full
};

}  // namespace deepinfer
