#include "sched/admission_queue.h"

#include <algorithm>

namespace deepinfer {

void AdmissionQueue::Add(const Entry& e) {
  entries_.emplace(e.id, e);
  ClassQueue& queue = classes_[static_cast<size_t>(e.request_class)];
  queue.by_start.emplace(e.latest_start_us, e.arrival_us, e.id);
  queue.by_arrival.emplace(e.arrival_us, e.id);
}

bool AdmissionQueue::Remove(int64_t id) {
  const auto it = entries_.find(id);
  if (it == entries_.end()) return false;
  const Entry& e = it->second;
  ClassQueue& queue = classes_[static_cast<size_t>(e.request_class)];
  queue.by_start.erase({e.latest_start_us, e.arrival_us, e.id});
  queue.by_arrival.erase({e.arrival_us, e.id});
  entries_.erase(it);
  return true;
}

std::vector<int64_t> AdmissionQueue::Window(size_t count) const {
  std::vector<int64_t> ids;
  for (const ClassQueue& queue : classes_) {
    size_t left = count;
    for (auto it = queue.by_start.begin(); it != queue.by_start.end() && left > 0; ++it, --left) {
      ids.push_back(std::get<2>(*it));
    }
    left = count;
    for (auto it = queue.by_arrival.begin(); it != queue.by_arrival.end() && left > 0;
         ++it, --left) {
      ids.push_back(std::get<1>(*it));
    }
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

}  // namespace deepinfer
