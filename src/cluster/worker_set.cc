#include "cluster/worker_set.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/log.h"

namespace deepinfer {

namespace {

// Delivering an event takes microseconds.
constexpr std::chrono::seconds kLongestLook{10};

}  // namespace

WorkerSet::WorkerSet(std::vector<std::unique_ptr<Worker>> workers) {
  for (std::unique_ptr<Worker>& worker : workers) {
    std::string endpoint = worker->info().endpoint;
    members_.push_back({std::move(endpoint), std::move(worker)});
  }
  Publish();
}

std::shared_ptr<const WorkerSet::List> WorkerSet::list() const {
  const std::lock_guard lock(mutex_);
  return list_;
}

void WorkerSet::Publish() {
  auto list = std::make_shared<List>();
  for (const Member& member : members_) list->push_back(member.worker);
  list_ = std::move(list);
}

void WorkerSet::Follow(const std::vector<std::string>& endpoints, const Make& make) {
  const std::lock_guard lock(mutex_);
  const auto is_named = [&](const std::string& endpoint) {
    return endpoint.empty() ||
           std::find(endpoints.begin(), endpoints.end(), endpoint) != endpoints.end();
  };
  for (Member& member : members_) member.named = is_named(member.endpoint);
  for (const std::string& endpoint : endpoints) {
    const auto known = std::any_of(members_.begin(), members_.end(),
                                   [&](const Member& m) { return m.endpoint == endpoint; });
    if (known) continue;
    Log(LogLevel::kInfo, "worker.found", {{"endpoint", endpoint}});
    members_.push_back({endpoint, make(endpoint)});
  }
  Publish();
}

void WorkerSet::Sweep(int64_t now_us) {
  for (const std::shared_ptr<Worker>& worker : *list()) worker->Sweep(now_us);
  List over;  // destroyed outside of the lock: the end of a worker is an event for its requests
  const std::lock_guard lock(mutex_);
  const auto gone = [](const Member& m) { return !m.named && !m.worker->Load().ready; };
  for (const Member& member : members_) {
    if (!gone(member)) continue;
    Log(LogLevel::kInfo, "worker.left", {{"endpoint", member.endpoint}});
    left_.push_back(member.worker);
  }
  if (std::erase_if(members_, [&](const Member& m) {
        return std::find(left_.begin(), left_.end(), m.worker) != left_.end();
      }) > 0) {
    Publish();
  }
  for (std::shared_ptr<Worker>& worker : left_) {
    if (worker.use_count() == 1) over.push_back(std::move(worker));
  }
  std::erase(left_, nullptr);
}

void WorkerSet::Clear() {
  std::vector<Member> members;
  List left;
  {
    const std::lock_guard lock(mutex_);
    members.swap(members_);
    left.swap(left_);
    Publish();
  }
  // A worker must not end on its own thread, which looks at its worker while it delivers an event.
  for (const Member& member : members) left.push_back(member.worker);
  members.clear();
  const auto deadline = std::chrono::steady_clock::now() + kLongestLook;
  for (const std::shared_ptr<Worker>& worker : left) {
    while (worker.use_count() > 1 && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

}  // namespace deepinfer
