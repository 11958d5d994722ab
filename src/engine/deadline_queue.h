// Deadlines of all requests in order of time, checked independently of scheduling. Entries of
// requests that ended stay until their time and are dropped then.
// Thread rule: engine thread.
#pragma once

#include <cstdint>
#include <queue>
#include <vector>

namespace deepinfer {

enum class DeadlineKind : uint8_t { kTotal, kQueue, kFirstToken };

struct Deadline {
  int64_t at_us = 0;
  int64_t sequence_id = 0;
  DeadlineKind kind = DeadlineKind::kTotal;

  bool operator>(const Deadline& other) const {
    return at_us != other.at_us ? at_us > other.at_us : sequence_id > other.sequence_id;
  }
};

class DeadlineQueue {
 public:
  // at_us 0: none.
  void Add(int64_t at_us, int64_t sequence_id, DeadlineKind kind) {
    if (at_us != 0) queue_.push({at_us, sequence_id, kind});
  }

  // The deadlines that have passed, earliest first.
  std::vector<Deadline> TakePassed(int64_t now_us) {
    std::vector<Deadline> passed;
    while (!queue_.empty() && queue_.top().at_us <= now_us) {
      passed.push_back(queue_.top());
      queue_.pop();
    }
    return passed;
  }

 private:
  std::priority_queue<Deadline, std::vector<Deadline>, std::greater<>> queue_;
};

}  // namespace deepinfer
