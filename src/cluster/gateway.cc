#include "cluster/gateway.h"

#include <algorithm>

#include "base/check.h"

namespace deepinfer {

Gateway::Gateway(GatewayOptions options, std::vector<std::unique_ptr<Worker>> workers)
    : options_(options), workers_(std::move(workers)) {
  DI_CHECK(!workers_.empty());
}

Gateway::~Gateway() = default;

const WorkerInfo& Gateway::info() const { return workers_.front()->info(); }

Status Gateway::Submit(EngineRequest request, TokenSink sink) {
  if (draining()) return Unavailable("the server is draining");
  // Fewest live requests first; the first of equals.
  Worker* best = nullptr;
  int32_t best_live = 0, waiting = 0;
  for (const auto& worker : workers_) {
    const LoadReport load = worker->Load();
    const int32_t live = load.running + load.waiting;
    waiting += load.waiting;
    if (!load.draining && (best == nullptr || live < best_live)) {
      best = worker.get();
      best_live = live;
    }
  }
  if (best == nullptr) return Unavailable("no worker accepts requests");
  if (waiting >= options_.max_queued_requests) {
    return ResourceExhausted(std::to_string(waiting) + " requests are already waiting");
  }
  return best->Submit(std::move(request), std::move(sink));
}

void Gateway::Cancel(std::string_view request_id) {
  for (const auto& worker : workers_) worker->Cancel(request_id);
}

LoadReport Gateway::Load() const {
  LoadReport sum;
  for (const auto& worker : workers_) {
    const LoadReport load = worker->Load();
    sum.running += load.running;
    sum.waiting += load.waiting;
    sum.kv_tokens += load.kv_tokens;
    sum.kv_capacity_tokens += load.kv_capacity_tokens;
  }
  sum.draining = draining();
  return sum;
}

void Gateway::Drain(int64_t deadline_us) {
  draining_.store(true, std::memory_order_release);
  for (const auto& worker : workers_) worker->Drain(deadline_us);
}

}  // namespace deepinfer
