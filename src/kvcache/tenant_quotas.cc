#include "kvcache/tenant_quotas.h"

#include <algorithm>
#include <numeric>

#include "kvcache/block_index.h"

namespace deepinfer {
namespace {

constexpr std::array<RetentionClass, kNumRetentionClasses> kClasses = {
    RetentionClass::kBatch, RetentionClass::kAgent, RetentionClass::kChat, RetentionClass::kPinned};

int64_t Sum(const std::array<int64_t, kNumRetentionClasses>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

bool HasLimit(const TenantQuota& quota) {
  return quota.all_bytes > 0 || Sum(quota.class_bytes) > 0;
}

}  // namespace

TenantQuota TenantQuotas::Of(uint64_t tag) const {
  TenantQuota quota = each;
  const auto named = by_tag.find(tag);
  if (named == by_tag.end()) return quota;
  if (named->second.all_bytes > 0) quota.all_bytes = named->second.all_bytes;
  for (size_t i = 0; i < kNumRetentionClasses; ++i) {
    if (named->second.class_bytes[i] > 0) quota.class_bytes[i] = named->second.class_bytes[i];
  }
  return quota;
}

bool TenantQuotas::any() const {
  return HasLimit(each) ||
         std::ranges::any_of(by_tag, [](const auto& named) { return HasLimit(named.second); });
}

QuotaBook::ByClass QuotaBook::Stored(uint16_t tenant) const {
  ByClass blocks{};
  for (const RetentionClass retention : kClasses) {
    blocks[static_cast<size_t>(retention)] = index_->CountOf(tenant, retention);
  }
  return blocks;
}

QuotaRefusal QuotaBook::Reserve(uint16_t tenant, uint64_t tag, RetentionClass retention) {
  if (!any_) return QuotaRefusal::kNone;
  const TenantQuota quota = quotas_.Of(tag);
  const auto place = static_cast<size_t>(retention);
  const std::lock_guard lock(mutex_);
  ByClass& reserved = reserved_[tenant];
  ByClass blocks = Stored(tenant);
  for (size_t i = 0; i < kNumRetentionClasses; ++i) blocks[i] += reserved[i];
  const auto exceeds = [&](int64_t held_blocks, int64_t limit_bytes) {
    return limit_bytes > 0 && (held_blocks + 1) * block_bytes_ > limit_bytes + limit_bytes / 10;
  };
  if (exceeds(Sum(blocks), quota.all_bytes)) return QuotaRefusal::kTenant;
  if (exceeds(blocks[place], quota.class_bytes[place])) return QuotaRefusal::kClass;
  ++reserved[place];
  return QuotaRefusal::kNone;
}

void QuotaBook::Settle(uint16_t tenant, RetentionClass retention) {
  if (!any_) return;
  const std::lock_guard lock(mutex_);
  const auto it = reserved_.find(tenant);
  if (it == reserved_.end()) return;
  --it->second[static_cast<size_t>(retention)];
  if (Sum(it->second) == 0) reserved_.erase(it);
}

std::vector<QuotaExcess> QuotaBook::Excesses(const std::vector<uint64_t>& tags) const {
  std::vector<QuotaExcess> excesses;
  if (!any_) return excesses;
  const auto note = [&](uint16_t tenant, std::optional<RetentionClass> retention, int64_t held,
                        int64_t limit_bytes) {
    const int64_t allowed = limit_bytes / block_bytes_;
    if (limit_bytes > 0 && held > allowed) {
      excesses.push_back({tenant, retention, held - allowed, held});
    }
  };
  // Number 0 stands for all tenants beyond the table: nobody's quota.
  for (size_t tenant = 1; tenant < tags.size(); ++tenant) {
    const auto number = static_cast<uint16_t>(tenant);
    const TenantQuota quota = quotas_.Of(tags[tenant]);
    if (!HasLimit(quota)) continue;
    const ByClass blocks = Stored(number);
    // Classes first: what leaves for them counts for all.
    for (const RetentionClass retention : kClasses) {
      const auto place = static_cast<size_t>(retention);
      note(number, retention, blocks[place], quota.class_bytes[place]);
    }
    note(number, std::nullopt, Sum(blocks), quota.all_bytes);
  }
  return excesses;
}

bool QuotaBook::IsOver(uint16_t tenant, uint64_t tag, RetentionClass retention) const {
  if (!any_ || tenant == 0) return false;
  const TenantQuota quota = quotas_.Of(tag);
  if (!HasLimit(quota)) return false;
  const ByClass blocks = Stored(tenant);
  const auto place = static_cast<size_t>(retention);
  const auto is_over = [&](int64_t held, int64_t limit_bytes) {
    return limit_bytes > 0 && held * block_bytes_ > limit_bytes;
  };
  return is_over(Sum(blocks), quota.all_bytes) || is_over(blocks[place], quota.class_bytes[place]);
}

}  // namespace deepinfer
