#include "server/replay_store.h"

#include <utility>

namespace deepinfer {
namespace {

// Of an entry beside its tokens: its key twice, nodes and pointers.
constexpr size_t kEntryBytes = 256;

}  // namespace

ReplayStore::ReplayStore(const Clock& clock, ReplayLimits limits)
    : clock_(clock), limits_(limits) {}

std::string ReplayStore::KeyOf(const Sha256Digest& scope, std::string_view call_id) {
  std::string key(reinterpret_cast<const char*>(scope.data()), scope.size());
  return key.append(call_id);
}

void ReplayStore::Keep(const Sha256Digest& scope, const std::vector<std::string>& call_ids,
                       std::vector<int32_t> ids) {
  if (call_ids.empty()) return;
  // The tokens are shared; the first id carries their weight.
  size_t num_bytes = kEntryBytes + ids.size() * sizeof(int32_t);
  const auto shared = std::make_shared<const std::vector<int32_t>>(std::move(ids));
  const int64_t now_us = clock_.NowUs();
  const std::lock_guard lock(mutex_);
  for (const std::string& call_id : call_ids) {
    std::string key = KeyOf(scope, call_id);
    if (entries_.contains(key)) continue;  // ids are random: the same turn, told twice
    num_bytes_ += num_bytes;
    entries_.emplace(key, Entry{shared, now_us, num_bytes});
    order_.push_back(std::move(key));
    num_bytes = kEntryBytes;
  }
  DropOld(now_us);
}

SampledIds ReplayStore::Find(const Sha256Digest& scope, std::string_view call_id) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(KeyOf(scope, call_id));
  if (found == entries_.end()) return nullptr;
  if (clock_.NowUs() - found->second.kept_us > limits_.max_age_us) return nullptr;
  return found->second.ids;
}

void ReplayStore::DropOld(int64_t now_us) {
  while (!order_.empty()) {
    const auto oldest = entries_.find(order_.front());
    const bool is_old = now_us - oldest->second.kept_us > limits_.max_age_us;
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
