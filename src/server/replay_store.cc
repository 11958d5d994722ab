#include "server/replay_store.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace deepinfer {
namespace {

// Of an entry beside its tokens: its key twice, nodes and pointers.
constexpr size_t kEntryBytes = 256;
constexpr int64_t kUsPerS = 1'000'000;

}  // namespace

ReplayStore::ReplayStore(const Clock& clock, ReplayLimits limits)
    : clock_(clock), limits_(limits) {}

std::string ReplayStore::KeyOf(const Sha256Digest& scope, std::string_view call_id) {
  std::string key(reinterpret_cast<const char*>(scope.data()), scope.size());
  return key.append(call_id);
}

void ReplayStore::Use(std::unique_ptr<ReplayFolder> folder) { folder_ = std::move(folder); }

void ReplayStore::Keep(const ReplayOwner& owner, const std::vector<std::string>& call_ids,
                       std::vector<int32_t> ids, bool persists, int64_t lifetime_s) {
  if (call_ids.empty()) return;
  const auto shared = std::make_shared<const std::vector<int32_t>>(std::move(ids));
  const int64_t lives_us =
      lifetime_s > 0 ? std::min(lifetime_s * kUsPerS, limits_.max_age_us) : limits_.max_age_us;
  Enter(owner, call_ids, shared, lives_us);
  if (folder_ && persists) folder_->Keep(owner, call_ids, shared, lifetime_s);
}

void ReplayStore::Enter(const ReplayOwner& owner, const std::vector<std::string>& call_ids,
                        const SampledIds& ids, int64_t lives_us) const {
  // The tokens are shared; the first id carries their weight.
  size_t num_bytes = kEntryBytes + ids->size() * sizeof(int32_t);
  const int64_t now_us = clock_.NowUs();
  const int64_t now_utc_s = folder_ ? folder_->NowS() : 0;
  const std::lock_guard lock(mutex_);
  for (const std::string& call_id : call_ids) {
    std::string key = KeyOf(owner.scope, call_id);
    if (entries_.contains(key)) continue;  // ids are random: the same turn, told twice
    num_bytes_ += num_bytes;
    entries_.emplace(key, Entry{ids, now_us + lives_us, now_utc_s, num_bytes});
    order_.push_back(std::move(key));
    num_bytes = kEntryBytes;
  }
  DropOld(now_us);
}

SampledIds ReplayStore::Find(const ReplayOwner& owner, std::string_view call_id) const {
  const int64_t erased_s = folder_ ? folder_->ErasedAt(owner.tenant_tag) : 0;
  {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(KeyOf(owner.scope, call_id));
    if (found != entries_.end()) {
      const bool is_old = clock_.NowUs() > found->second.until_us;
      const bool is_erased = erased_s != 0 && found->second.kept_utc_s <= erased_s;
      return is_old || is_erased ? nullptr : found->second.ids;
    }
  }
  if (!folder_) return nullptr;
  std::optional<KeptTurn> read = folder_->Find(owner, call_id);
  if (!read) return nullptr;
  const auto shared = std::make_shared<const std::vector<int32_t>>(std::move(read->ids));
  const int64_t left_us = std::max<int64_t>(0, read->deadline_s - folder_->NowS()) * kUsPerS;
  Enter(owner, {std::string(call_id)}, shared, std::min(left_us, limits_.max_age_us));
  return shared;
}

void ReplayStore::Flush() {
  if (folder_) folder_->Flush();
}

void ReplayStore::DropOld(int64_t now_us) const {
  while (!order_.empty()) {
    const auto oldest = entries_.find(order_.front());
    const bool is_old = now_us > oldest->second.until_us;
    if (!is_old && entries_.size() <= limits_.max_ids && num_bytes_ <= limits_.max_bytes) return;
    num_bytes_ -= oldest->second.num_bytes;
    entries_.erase(oldest);
    order_.pop_front();
  }
}

size_t ReplayStore::num_ids() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

size_t ReplayStore::num_bytes() const {
  const std::lock_guard lock(mutex_);
  return num_bytes_;
}

}  // namespace deepinfer
