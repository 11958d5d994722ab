// How much of a store one tenant may hold, in all and by class (kv_format.md §19): above its quota
// its blocks are the first to go, ten percent above it nothing more of it is written.
// Thread rule: any thread, one lock.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "kvcache/format.h"

namespace deepinfer {

class BlockIndex;

// Most bytes; 0: no limit.
struct TenantQuota {
  int64_t all_bytes = 0;
  std::array<int64_t, kNumRetentionClasses> class_bytes{};
};

struct TenantQuotas {
  TenantQuota each;                        // of every tenant
  std::map<uint64_t, TenantQuota> by_tag;  // of these instead, as far as they say something

  TenantQuota Of(uint64_t tag) const;
  bool any() const;
};

enum class QuotaRefusal : uint8_t { kNone, kTenant, kClass };

// What a tenant holds beyond a quota.
struct QuotaExcess {
  uint16_t tenant = 0;                      // number in the store's table
  std::optional<RetentionClass> retention;  // of its quota in this class; none: in all
  int64_t blocks = 0;                       // too many
  int64_t held = 0;                         // of which these are too many
};

class QuotaBook {
 public:
  // index counts what is stored; borrowed.
  QuotaBook(const TenantQuotas& quotas, const BlockIndex* index, int64_t block_bytes)
      : quotas_(quotas), any_(quotas.any()), index_(index), block_bytes_(block_bytes) {}

  // Makes room for one more block that is on its way; refused when stored blocks and those on their
  // way would exceed a quota by more than a tenth.
  QuotaRefusal Reserve(uint16_t tenant, uint64_t tag, RetentionClass retention);
  // It is stored or given up.
  void Settle(uint16_t tenant, RetentionClass retention);
  // Stored blocks beyond the quotas of these tenants, tags by number.
  std::vector<QuotaExcess> Excesses(const std::vector<uint64_t>& tags) const;
  // The tenant holds more than its quota, in all or in this class.
  bool IsOver(uint16_t tenant, uint64_t tag, RetentionClass retention) const;
  bool any() const { return any_; }

 private:
  using ByClass = std::array<int64_t, kNumRetentionClasses>;
  ByClass Stored(uint16_t tenant) const;

  const TenantQuotas quotas_;
  const bool any_;
  const BlockIndex* index_;
  const int64_t block_bytes_;
  std::mutex mutex_;
  std::unordered_map<uint16_t, ByClass> reserved_;
};

}  // namespace deepinfer
