#include "sched/dispatch_queue.h"

#include <algorithm>

#include "sched/limits.h"

namespace deepinfer {

namespace {

double Share(const QueuedWork& w) {
  return w.cost_us > 0 ? w.cost_us : static_cast<double>(std::max<int64_t>(1, w.prompt_tokens));
}

}  // namespace

void DispatchQueue::Add(const QueuedWork& work) {
  ClassQueue& of_class = classes_[static_cast<size_t>(work.request_class)];
  TenantQueue& queue = of_class.tenants[work.tenant];
  if (queue.by_arrival.empty()) queue.start = std::max(queue.start, of_class.virtual_time);
  queue.by_start.emplace(work.latest_start_us, work.arrival_us, work.id);
  queue.by_arrival.emplace(work.arrival_us, work.id);
  queue.cost_us += work.cost_us;
  of_class.cost_us += work.cost_us;
  ++of_class.size;
  prompt_tokens_ += work.prompt_tokens;
  work_.emplace(work.id, work);
}

DispatchQueue::TenantQueue* DispatchQueue::TakeOut(const QueuedWork& work) {
  ClassQueue& of_class = classes_[static_cast<size_t>(work.request_class)];
  TenantQueue& queue = of_class.tenants.at(work.tenant);
  queue.by_start.erase({work.latest_start_us, work.arrival_us, work.id});
  queue.by_arrival.erase({work.arrival_us, work.id});
  queue.cost_us -= work.cost_us;
  of_class.cost_us -= work.cost_us;
  --of_class.size;
  prompt_tokens_ -= work.prompt_tokens;
  if (work.request_class == RequestClass::kBatch && of_class.size == 0) batch_credit_ = 0;
  return &queue;
}

bool DispatchQueue::Remove(uint64_t id) {
  const auto it = work_.find(id);
  if (it == work_.end()) return false;
  (void)TakeOut(it->second);
  work_.erase(it);
  return true;
}

void DispatchQueue::Dispatch(uint64_t id) {
  const auto it = work_.find(id);
  if (it == work_.end()) return;
  const QueuedWork work = it->second;
  work_.erase(it);
  const double share = Share(work);
  ClassQueue& of_class = classes_[static_cast<size_t>(work.request_class)];
  TenantQueue* queue = TakeOut(work);
  of_class.virtual_time = std::max(of_class.virtual_time, queue->start);
  queue->start += share;
  if (of_class.size == 0) {
    // Nobody waits, so nobody was kept from anything.
    of_class = {};
  } else {
    std::erase_if(of_class.tenants, [&](const auto& entry) {
      return entry.second.by_arrival.empty() && entry.second.start <= of_class.virtual_time;
    });
  }
  if (work.request_class == RequestClass::kBatch) {
    batch_credit_ = std::max(0.0, batch_credit_ - share);
  } else if (size(RequestClass::kBatch) > 0) {
    batch_credit_ += share * kBatchFloor / (1 - kBatchFloor);
  }
}

std::optional<DispatchQueue::Head> DispatchQueue::HeadOf(
    RequestClass c, int64_t now_us, const std::function<bool(uint64_t)>& may_go) const {
  const TenantQueue* first = nullptr;
  std::optional<Head> head;
  for (const auto& [tenant, queue] : classes_[static_cast<size_t>(c)].tenants) {
    if (queue.by_arrival.empty() || !may_go(tenant)) continue;
    const int64_t arrival_us = queue.by_arrival.begin()->first;
    if (!head) head.emplace().oldest_us = arrival_us;
    head->oldest_us = std::min(head->oldest_us, arrival_us);
    const bool sooner =
        first == nullptr || queue.start < first->start ||
        (queue.start == first->start && *queue.by_arrival.begin() < *first->by_arrival.begin());
    if (sooner) first = &queue;
  }
  if (first == nullptr) return std::nullopt;
  const int64_t max_wait_us = MaxWaitUs(c);
  head->aged = now_us - head->oldest_us > max_wait_us;
  const auto& [arrival_us, oldest] = *first->by_arrival.begin();
  head->id = now_us - arrival_us > max_wait_us ? oldest : std::get<2>(*first->by_start.begin());
  return head;
}

std::optional<uint64_t> DispatchQueue::Next(int64_t now_us,
                                            const std::function<bool(uint64_t)>& may_go,
                                            bool with_batch) const {
  std::optional<uint64_t> best;
  std::tuple<bool, int64_t, RequestClass> best_key;
  for (const RequestClass c : kRequestClasses) {
    if (c == RequestClass::kBatch && !with_batch) continue;
    const std::optional<Head> head = HeadOf(c, now_us, may_go);
    if (!head) continue;
    const bool floor_due = c == RequestClass::kBatch && batch_credit_ >= Share(work_.at(head->id));
    if (floor_due) return head->id;
    const std::tuple key(!head->aged, head->aged ? head->oldest_us : 0, c);
    if (best && best_key <= key) continue;
    best = head->id;
    best_key = key;
  }
  return best;
}

double DispatchQueue::CostAheadUs(RequestClass c) const {
  double sum = 0;
  for (size_t i = 0; i <= static_cast<size_t>(c); ++i) sum += classes_[i].cost_us;
  return sum;
}

double DispatchQueue::CostOfTenantUs(uint64_t tenant) const {
  double sum = 0;
  for (const ClassQueue& of_class : classes_) {
    const auto it = of_class.tenants.find(tenant);
    if (it != of_class.tenants.end()) sum += it->second.cost_us;
  }
  return sum;
}

std::optional<int64_t> DispatchQueue::oldest_us() const {
  std::optional<int64_t> oldest;
  for (const ClassQueue& of_class : classes_) {
    for (const auto& [tenant, queue] : of_class.tenants) {
      if (queue.by_arrival.empty()) continue;
      const int64_t arrival_us = queue.by_arrival.begin()->first;
      oldest = oldest ? std::min(*oldest, arrival_us) : arrival_us;
    }
  }
  return oldest;
}

}  // namespace deepinfer
