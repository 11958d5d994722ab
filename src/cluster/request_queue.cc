#include "cluster/request_queue.h"

#include <algorithm>
#include <utility>

#include "sched/snapshot.h"

namespace deepinfer {

bool RequestQueue::MayPass(const LiveRequest& request, int64_t now_us) const {
  const std::lock_guard lock(mutex_);
  return entries_.empty() && budgets_.Allows(request.tenant(), now_us);
}

double RequestQueue::BudgetWaitUs(uint64_t tenant, int64_t now_us) const {
  const std::lock_guard lock(mutex_);
  return budgets_.WaitUs(tenant, order_.CostOfTenantUs(tenant), now_us);
}

void RequestQueue::Charge(LiveRequest* request, const std::optional<Router::Cost>& cost,
                          int64_t now_us) {
  if (!cost) return;
  request->NoteCharge({cost->us_per_output_token, cost->output_tokens});
  const std::lock_guard lock(mutex_);
  budgets_.Charge(request->tenant(), cost->work_us(), now_us);
}

void RequestQueue::Settle(LiveRequest* request, int64_t generated_tokens, int64_t now_us) {
  const LiveRequest::Charge charge = request->TakeCharge();
  if (charge.us_per_output_token <= 0) return;
  const auto more = static_cast<double>(generated_tokens - charge.output_tokens);
  const std::lock_guard lock(mutex_);
  budgets_.Charge(request->tenant(), more * charge.us_per_output_token, now_us);
}

void RequestQueue::Add(LivePtr request, const std::optional<Router::Cost>& cost, int64_t now_us) {
  const std::lock_guard lock(mutex_);
  AddWaiter({std::move(request), now_us}, cost);
  ++num_queued_;
}

void RequestQueue::AddWaiter(Waiter waiter, const std::optional<Router::Cost>& cost) {
  const LiveRequest& request = *waiter.request;
  QueuedWork work;
  work.id = next_number_++;
  work.request_class = request.request_class();
  work.tenant = request.tenant();
  work.arrival_us = waiter.since_us;
  work.latest_start_us = kNoDeadlineUs;
  const int64_t deadline_us = request.request().first_token_deadline_us;
  if (deadline_us != 0) {
    work.latest_start_us = deadline_us - static_cast<int64_t>(cost ? cost->prompt_us : 0);
  }
  if (cost) work.cost_us = cost->work_us();
  work.prompt_tokens = request.prompt_tokens();
  order_.Add(work);
  numbers_[request.id()] = work.id;
  entries_[work.id] = {std::move(waiter), {}, cost};
}

bool RequestQueue::Follow(const std::string& leader, LivePtr request, int64_t now_us) {
  const std::lock_guard lock(mutex_);
  const auto it = numbers_.find(leader);
  if (it == numbers_.end()) return false;
  entries_[it->second].followers.push_back({std::move(request), now_us});
  ++num_queued_;
  ++num_followers_;
  return true;
}

RequestQueue::LivePtr RequestQueue::Next(int64_t now_us, bool with_batch) const {
  const std::lock_guard lock(mutex_);
  const auto may_go = [&](uint64_t tenant) { return budgets_.Allows(tenant, now_us); };
  const auto id = order_.Next(now_us, may_go, with_batch);
  return id ? entries_.at(*id).first.request : nullptr;
}

RequestQueue::Entry RequestQueue::TakeEntry(uint64_t number) {
  const auto it = entries_.find(number);
  Entry entry = std::move(it->second);
  entries_.erase(it);
  numbers_.erase(entry.first.request->id());
  num_followers_ -= static_cast<int32_t>(entry.followers.size());
  return entry;
}

std::optional<RequestQueue::Entry> RequestQueue::Take(const LiveRequest& request) {
  const std::lock_guard lock(mutex_);
  const auto it = numbers_.find(request.id());
  if (it == numbers_.end()) return std::nullopt;
  const uint64_t number = it->second;
  order_.Dispatch(number);
  return TakeEntry(number);
}

std::vector<RequestQueue::Waiter> RequestQueue::TakeEnded(
    const std::function<bool(const LiveRequest&)>& ends) {
  std::vector<Waiter> ended;
  std::vector<uint64_t> numbers;
  const std::lock_guard lock(mutex_);
  for (auto& [number, entry] : entries_) {
    if (ends(*entry.first.request)) numbers.push_back(number);
    num_followers_ -= static_cast<int32_t>(std::erase_if(entry.followers, [&](Waiter& follower) {
      if (!ends(*follower.request)) return false;
      ended.push_back(std::move(follower));
      return true;
    }));
  }
  for (const uint64_t number : numbers) {
    (void)order_.Remove(number);
    Entry entry = TakeEntry(number);
    ended.push_back(std::move(entry.first));
    for (Waiter& follower : entry.followers) AddWaiter(std::move(follower), entry.cost);
  }
  return ended;
}

bool RequestQueue::empty() const {
  const std::lock_guard lock(mutex_);
  return entries_.empty();
}

GatewayQueueState RequestQueue::state(RequestClass request_class) const {
  const std::lock_guard lock(mutex_);
  GatewayQueueState state;
  state.requests = static_cast<int32_t>(entries_.size()) + num_followers_;
  state.prompt_tokens = order_.prompt_tokens();
  state.ahead_us = order_.CostAheadUs(request_class);
  return state;
}

void RequestQueue::Count(int64_t now_us, GatewayCounters* counters) const {
  const std::lock_guard lock(mutex_);
  counters->queued = num_queued_;
  for (const RequestClass c : kRequestClasses) {
    counters->waiting[static_cast<size_t>(c)] = static_cast<int64_t>(order_.size(c));
  }
  if (const auto oldest = order_.oldest_us()) counters->oldest_wait_us = now_us - *oldest;
}

}  // namespace deepinfer
