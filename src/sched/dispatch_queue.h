// Requests that wait at a gateway for a worker with credit, and which of them goes next
// (docs/cluster.md §4): the class decides, tenants of a class share by cost, and within a tenant
// the one with the least slack goes first. Thread rule: one owner.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "sched/request_class.h"

namespace deepinfer {

struct QueuedWork {
  uint64_t id = 0;
  RequestClass request_class = RequestClass::kInteractive;
  uint64_t tenant = 0;
  int64_t arrival_us = 0;
  // Deadline of the first token less predicted prefill time; kNoDeadlineUs without one.
  int64_t latest_start_us = 0;
  double cost_us = 0;  // predicted; 0: unknown, its tokens count then
  int64_t prompt_tokens = 0;
};

class DispatchQueue {
 public:
  // The id must not be queued.
  void Add(const QueuedWork& work);
  // Takes it out unserved. Unknown ids are fine; true when it was queued.
  bool Remove(uint64_t id);

  // Whose turn it is, among tenants that may go: batch when its floor is due; else what waited for
  // longer than its class may, in order of arrival; else the first class. Nothing when none may go.
  // with_batch: else as if there were no batch work.
  std::optional<uint64_t> Next(int64_t now_us, const std::function<bool(uint64_t tenant)>& may_go,
                               bool with_batch = true) const;
  // Takes it out and books its cost.
  void Dispatch(uint64_t id);

  size_t size() const { return work_.size(); }
  size_t size(RequestClass c) const { return classes_[static_cast<size_t>(c)].size; }
  bool empty() const { return work_.empty(); }
  int64_t prompt_tokens() const { return prompt_tokens_; }
  // Of everything that goes before a new request of the class.
  double CostAheadUs(RequestClass c) const;
  // Of one tenant.
  double CostOfTenantUs(uint64_t tenant) const;
  // When the one came that waits for longest.
  std::optional<int64_t> oldest_us() const;

 private:
  using ByStart = std::set<std::tuple<int64_t, int64_t, uint64_t>>;  // latest start, arrival, id
  using ByArrival = std::set<std::pair<int64_t, uint64_t>>;
  // Start-time fair queueing: a tenant is served when its start is the least, and begins no earlier
  // than the class has come, so that whoever was away has saved up nothing.
  struct TenantQueue {
    ByStart by_start;
    ByArrival by_arrival;
    double start = 0;
    double cost_us = 0;
  };
  struct ClassQueue {
    std::map<uint64_t, TenantQueue> tenants;
    double virtual_time = 0;
    double cost_us = 0;
    size_t size = 0;
  };
  // The best of a class.
  struct Head {
    uint64_t id = 0;
    int64_t oldest_us = 0;
    bool aged = false;
  };

  std::optional<Head> HeadOf(RequestClass c, int64_t now_us,
                             const std::function<bool(uint64_t)>& may_go) const;
  // Out of all tables but that of tenants.
  TenantQueue* TakeOut(const QueuedWork& work);

  std::array<ClassQueue, kRequestClasses.size()> classes_;
  std::unordered_map<uint64_t, QueuedWork> work_;
  int64_t prompt_tokens_ = 0;
  double batch_credit_ = 0;  // cost that is due to the batch class
};

}  // namespace deepinfer
