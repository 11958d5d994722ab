// Which attempt of a request a worker has seen: lower ones are stale for ten minutes, equal ones
// are repeats (docs/cluster.md §2).
// Thread rule: one caller at a time. Owner: WorkerService.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <utility>

namespace deepinfer {

class RunFence {
 public:
  // True when the attempt is higher than every one seen of this request.
  bool Enter(const std::string& request_id, uint32_t attempt, int64_t now_us) {
    Forget(now_us);
    Seen& seen = seen_[request_id];
    if (attempt <= seen.attempt) return false;
    seen.attempt = attempt;
    seen.last_us = now_us;
    seen.cancelled = false;
    order_.emplace_back(now_us, request_id);
    return true;
  }

  // A cancellation: the attempt and those below it enter no more.
  void Cancel(const std::string& request_id, uint32_t attempt, int64_t now_us) {
    if (Enter(request_id, attempt, now_us)) seen_[request_id].cancelled = true;
  }
  // Whether the cancellation of the attempt came before the attempt itself; true once.
  bool TakeCancelled(const std::string& request_id, uint32_t attempt) {
    const auto it = seen_.find(request_id);
    return it != seen_.end() && it->second.attempt == attempt &&
           std::exchange(it->second.cancelled, false);
  }

  size_t size() const { return seen_.size(); }

 private:
  static constexpr int64_t kMemoryUs = int64_t{10} * 60 * 1'000'000;
  struct Seen {
    uint32_t attempt = 0;
    int64_t last_us = 0;
    bool cancelled = false;  // and it never entered
  };

  void Forget(int64_t now_us) {
    while (!order_.empty() && now_us - order_.front().first > kMemoryUs) {
      const auto it = seen_.find(order_.front().second);
      if (it != seen_.end() && it->second.last_us == order_.front().first) seen_.erase(it);
      order_.pop_front();
    }
  }

  std::unordered_map<std::string, Seen> seen_;
  std::deque<std::pair<int64_t, std::string>> order_;  // oldest first
};

}  // namespace deepinfer
