#include "transfer/extent_push.h"

#include <algorithm>
#include <utility>

#include "base/crc32c.h"

namespace deepinfer {

using std::chrono::steady_clock;

ExtentPush::ExtentPush(const ExtentPushOptions& options) : options_(options) {}

void ExtentPush::Add(ExtentBytes bytes) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_ || !stopped_.ok()) return;
    queue_.push_back(std::move(bytes));
  }
  changed_.notify_all();
}

void ExtentPush::Close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}

void ExtentPush::LetGoEarly() {
  std::vector<std::shared_ptr<void>> arrived;  // ends outside of the lock
  const std::lock_guard lock(mutex_);
  lets_go_early_ = true;
  arrived.swap(arrived_);
}

void ExtentPush::LetGoAll() {
  std::vector<std::shared_ptr<void>> arrived;  // end outside of the lock
  std::deque<ExtentBytes> queue;
  std::map<int64_t, Sent> on_the_way;
  const std::lock_guard lock(mutex_);
  closed_ = true;
  arrived.swap(arrived_);
  queue.swap(queue_);
  on_the_way.swap(on_the_way_);
}

Status ExtentPush::Run(const ExtentPushTarget& target) {
  const int64_t num_slots = target.window_bytes / kExtentBytes;
  if (num_slots < 1 || num_slots > UINT16_MAX || target.window_bytes % kExtentBytes != 0) {
    return InvalidRequest("the window of a landing holds no whole number of extents");
  }
  {
    const std::lock_guard lock(mutex_);
    if (!stopped_.ok()) return stopped_;
    path_ = target.path;
    for (int64_t slot = num_slots; slot > 0; --slot) {
      free_slots_.push_back(static_cast<uint32_t>(slot - 1));
    }
  }
  Status status;
  while (status.ok()) {
    Sent next;
    const Result<bool> more = Next(target, &next);
    status = more.status();
    if (!status.ok() || !*more) break;
    Gather(&next);
    status = target.path->Send(next.extent, gathered_, steady_clock::now() + options_.stall_limit);
    if (status.ok() && target.path->needs_message()) target.announce(next.extent);
  }
  const std::lock_guard lock(mutex_);
  path_ = nullptr;
  // Whoever stopped it says why better than the connection it cut.
  return stopped_.ok() ? std::move(status) : stopped_;
}

bool ExtentPush::Choose(uint64_t ticket, Sent* next) {
  while (!again_.empty()) {
    const auto it = on_the_way_.find(again_.front());
    again_.pop_front();
    if (it == on_the_way_.end()) continue;  // acknowledged after all
    *next = it->second;
    return true;
  }
  if (queue_.empty() || free_slots_.empty()) return false;
  next->bytes = std::move(queue_.front());
  queue_.pop_front();
  next->extent = {ticket, next->bytes.offset, 0, 0, free_slots_.back()};
  free_slots_.pop_back();
  return true;
}

Result<bool> ExtentPush::Next(const ExtentPushTarget& target, Sent* next) {
  std::unique_lock lock(mutex_);
  auto deadline = steady_clock::now() + options_.stall_limit;
  while (stopped_.ok()) {
    if (Choose(target.ticket, next)) return true;
    const bool waits_for_peer = !on_the_way_.empty();
    if (!waits_for_peer && closed_) return false;
    const int64_t acks_before = num_acks_;
    const auto until = waits_for_peer ? deadline : steady_clock::now() + target.idle_interval;
    if (changed_.wait_until(lock, until) == std::cv_status::timeout) {
      if (waits_for_peer) return DeadlineExceeded("the receiver of a transfer stands still");
      lock.unlock();
      target.idle();
      lock.lock();
    }
    if (num_acks_ != acks_before || !waits_for_peer) {
      deadline = steady_clock::now() + options_.stall_limit;
    }
  }
  return stopped_;
}

void ExtentPush::Gather(Sent* next) {
  gathered_.clear();
  for (const auto& part : next->bytes.parts) {
    gathered_.insert(gathered_.end(), part.begin(), part.end());
  }
  next->extent.size_bytes = static_cast<int64_t>(gathered_.size());
  next->extent.crc32c = Crc32c(gathered_);
  const std::lock_guard lock(mutex_);
  const int64_t offset = next->extent.offset;
  if (crcs_.emplace(offset, next->extent.crc32c).second) size_bytes_ += next->extent.size_bytes;
  on_the_way_.insert_or_assign(offset, *next);
}

void ExtentPush::OnAck(int64_t offset, bool corrupt) {
  std::shared_ptr<void> keep;  // ends outside of the lock
  {
    const std::lock_guard lock(mutex_);
    const auto it = on_the_way_.find(offset);
    if (it == on_the_way_.end()) return;
    ++num_acks_;
    if (corrupt && !repeated_.insert(offset).second) {
      if (stopped_.ok()) stopped_ = Unavailable("an extent arrived broken twice");
    } else if (corrupt) {
      again_.push_back(offset);
    } else {
      free_slots_.push_back(it->second.extent.slot);
      keep = std::move(it->second.bytes.keep);
      on_the_way_.erase(it);
      if (!lets_go_early_) arrived_.push_back(std::move(keep));
    }
  }
  changed_.notify_all();
}

void ExtentPush::Stop(Status why) {
  {
    const std::lock_guard lock(mutex_);
    if (!stopped_.ok()) return;
    stopped_ = std::move(why);
    if (path_ != nullptr) path_->Interrupt();
  }
  changed_.notify_all();
}

Manifest ExtentPush::manifest() const {
  const std::lock_guard lock(mutex_);
  std::vector<uint32_t> crcs;
  for (const auto& [offset, crc] : crcs_) crcs.push_back(crc);
  return {size_bytes_, static_cast<int32_t>(crcs.size()), ManifestCrc(crcs)};
}

}  // namespace deepinfer
