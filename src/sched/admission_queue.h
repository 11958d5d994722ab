// Requests that wait for admission, ordered so that a plan looks at a bounded number of them
// however long the queue is.
// Thread rule: one owner.
#pragma once

#include <array>
#include <cstdint>
#include <set>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "sched/request_class.h"

namespace deepinfer {

class AdmissionQueue {
 public:
  struct Entry {
    int64_t id = 0;
    RequestClass request_class = RequestClass::kInteractive;
    int64_t arrival_us = 0;
    // Deadline less predicted prefill time: among waiting requests the order of this value is the
    // order of slack at any time. kNoDeadlineUs without a deadline.
    int64_t latest_start_us = 0;
  };

  // The id must not be queued.
  void Add(const Entry& entry);
  // Unknown ids are fine; true when it was queued.
  bool Remove(int64_t id);

  size_t size() const { return entries_.size(); }
  size_t size(RequestClass c) const { return Of(c).by_start.size(); }
  bool empty() const { return entries_.empty(); }

  // Per class the first `count` by slack and the first `count` by arrival, each id once. A plan
  // that admits or passes over at most `count` candidates decides as if it saw the whole queue.
  std::vector<int64_t> Window(size_t count) const;

 private:
  struct ClassQueue {
    std::set<std::tuple<int64_t, int64_t, int64_t>> by_start;  // latest start, arrival, id
    std::set<std::tuple<int64_t, int64_t>> by_arrival;         // arrival, id
  };

  const ClassQueue& Of(RequestClass c) const { return classes_[static_cast<size_t>(c)]; }

  std::array<ClassQueue, kRequestClasses.size()> classes_;
  std::unordered_map<int64_t, Entry> entries_;
};

}  // namespace deepinfer
