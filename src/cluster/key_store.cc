#include "cluster/key_store.h"

#include <utility>

#include "cluster/incarnation.h"

namespace deepinfer {

namespace {

// More than a watch can be behind unless it hangs; it then lists again.
constexpr size_t kMostHistory = 10'000;

bool IsAll(const std::string& end) { return end.size() == 1 && end[0] == '\0'; }

}  // namespace

bool KeyRange::Contains(const std::string& key) const {
  if (end.empty()) return key == begin;
  return key >= begin && (IsAll(end) || key < end);
}

std::vector<std::pair<std::string, StoredKey>> KeyStore::Batch::Range(const KeyRange& range) const {
  std::vector<std::pair<std::string, StoredKey>> found;
  for (auto it = store_->keys_.lower_bound(range.begin); it != store_->keys_.end(); ++it) {
    if (!range.Contains(it->first)) break;
    found.emplace_back(it->first, it->second);
  }
  return found;
}

void KeyStore::Batch::Count() {
  if (!std::exchange(counted_, true)) ++store_->revision_;
}

bool KeyStore::Batch::Put(const std::string& key, const std::string& value, int64_t lease) {
  if (lease != 0 && !store_->leases_.contains(lease)) return false;
  Count();
  StoredKey& stored = store_->keys_[key];
  if (stored.lease != 0) store_->leases_[stored.lease].keys.erase(key);
  if (lease != 0) store_->leases_[lease].keys.insert(key);
  if (stored.version++ == 0) stored.create_revision = store_->revision_;
  stored.mod_revision = store_->revision_;
  stored.value = value;
  stored.lease = lease;
  store_->Note({false, {key, value, store_->revision_, lease}});
  return true;
}

int64_t KeyStore::Batch::Delete(const KeyRange& range) {
  const auto found = Range(range);
  if (!found.empty()) Count();
  for (const auto& [key, stored] : found) store_->Erase(key);
  return static_cast<int64_t>(found.size());
}

void KeyStore::Erase(const std::string& key) {
  const auto it = keys_.find(key);
  if (it->second.lease != 0) leases_[it->second.lease].keys.erase(key);
  keys_.erase(it);
  Note({true, {key, "", revision_, 0}});
}

void KeyStore::Note(RegistryEvent event) {
  history_.push_back(std::move(event));
  while (history_.size() > kMostHistory) {
    forgotten_ = history_.front().entry.mod_revision;
    history_.pop_front();
  }
}

void KeyStore::EndLease(int64_t id) {
  const auto it = leases_.find(id);
  const std::set<std::string> keys = it->second.keys;
  if (!keys.empty()) ++revision_;
  for (const std::string& key : keys) Erase(key);
  leases_.erase(id);
}

void KeyStore::Expire() {
  const int64_t now_us = clock_->NowUs();
  std::vector<int64_t> over;
  for (const auto& [id, lease] : leases_) {
    if (now_us >= lease.until_us) over.push_back(id);
  }
  for (const int64_t id : over) EndLease(id);
}

void KeyStore::Sweep() { const Batch batch(this); }

std::optional<int64_t> KeyStore::GrantLease(int64_t ttl_s, int64_t id) {
  const std::lock_guard lock(mutex_);
  Expire();
  // Never one that was granted before a restart: its owner would keep somebody else's alive.
  while (id == 0) id = static_cast<int64_t>(NewIncarnation() >> 1);
  if (leases_.contains(id)) return std::nullopt;
  leases_[id] = {ttl_s * 1'000'000, clock_->NowUs() + ttl_s * 1'000'000, {}};
  return id;
}

int64_t KeyStore::KeepAlive(int64_t id) {
  const std::lock_guard lock(mutex_);
  Expire();
  const auto it = leases_.find(id);
  if (it == leases_.end()) return 0;
  it->second.until_us = clock_->NowUs() + it->second.ttl_us;
  return it->second.ttl_us / 1'000'000;
}

bool KeyStore::RevokeLease(int64_t id) {
  const std::lock_guard lock(mutex_);
  Expire();
  if (!leases_.contains(id)) return false;
  EndLease(id);
  changed_.notify_all();
  return true;
}

std::optional<KeyStore::Changes> KeyStore::Wait(const KeyRange& range, int64_t from,
                                                std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (true) {
    if (from <= forgotten_) return std::nullopt;
    Changes changes;
    changes.revision = revision_;
    for (const RegistryEvent& event : history_) {
      if (event.entry.mod_revision < from || !range.Contains(event.entry.key)) continue;
      changes.events.push_back(event);
    }
    if (!changes.events.empty()) return changes;
    if (changed_.wait_until(lock, deadline) == std::cv_status::timeout) return changes;
  }
}

}  // namespace deepinfer
