// Requests that wait at a gateway until a worker has credit for them and their tenant has budget
// (docs/cluster.md §4).
// Thread rule: any thread. Owner: Gateway.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "cluster/admission_control.h"
#include "cluster/gateway_counters.h"
#include "cluster/live_request.h"
#include "cluster/router.h"
#include "sched/dispatch_queue.h"
#include "sched/tenant_budgets.h"

namespace deepinfer {

class RequestQueue {
 public:
  using LivePtr = std::shared_ptr<LiveRequest>;

  explicit RequestQueue(const TenantBudgets::Options& budgets)
      : limits_tenants_(budgets.rate > 0), budgets_(budgets) {}

  // Whether anybody's budget ends.
  bool limits_tenants() const { return limits_tenants_; }
  // A new request need not wait: nobody does, and its tenant has budget.
  bool MayPass(const LiveRequest& request, int64_t now_us) const;
  // Until the tenant's budget lets a new request begin; 0: at once.
  double BudgetWaitUs(uint64_t tenant, int64_t now_us) const;
  void Charge(LiveRequest* request, const std::optional<Router::Cost>& cost, int64_t now_us);
  // Its end: what was charged for tokens that never came goes back.
  void Settle(LiveRequest* request, int64_t generated_tokens, int64_t now_us);

  void Add(LivePtr request, const std::optional<Router::Cost>& cost, int64_t now_us);
  // Behind the request with this id, whose prompt it shares; false when that does not wait.
  bool Follow(const std::string& leader, LivePtr request, int64_t now_us);

  struct Waiter {
    LivePtr request;
    int64_t since_us = 0;
  };
  struct Entry {
    Waiter first;
    std::vector<Waiter> followers;
    std::optional<Router::Cost> cost;
  };
  // Whose turn it is; with_batch: else as if there were no batch work.
  LivePtr Next(int64_t now_us, bool with_batch) const;
  // Takes out what Next said; nothing when it has gone meanwhile.
  std::optional<Entry> Take(const LiveRequest& request);
  // Takes out, for good, whatever `ends` says so of. Those that followed it wait for themselves.
  std::vector<Waiter> TakeEnded(const std::function<bool(const LiveRequest&)>& ends);

  bool empty() const;
  // As a new request of the class sees it.
  GatewayQueueState state(RequestClass request_class) const;
  void Count(int64_t now_us, GatewayCounters* counters) const;

 private:
  // Under the lock.
  void AddWaiter(Waiter waiter, const std::optional<Router::Cost>& cost);
  Entry TakeEntry(uint64_t number);  // out of the entries only

  const bool limits_tenants_;
  mutable std::mutex mutex_;
  TenantBudgets budgets_;  // under mutex_, as all below
  DispatchQueue order_;
  std::unordered_map<uint64_t, Entry> entries_;
  std::unordered_map<std::string, uint64_t> numbers_;  // by request id
  uint64_t next_number_ = 1;
  int64_t num_queued_ = 0;  // since the start
  int32_t num_followers_ = 0;
};

}  // namespace deepinfer
