// How much a key may use per minute (api.md §13): a bucket that fills evenly and holds one minute's
// worth. What is known only afterwards may leave it in debt, which the next ones wait out.
// Thread rule: any thread; Set before the limit is shared. Owner: ApiKey.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>

namespace deepinfer {

class RateLimit {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  struct Answer {
    bool allowed = true;
    int64_t limit = 0;      // per minute; 0: none
    int64_t remaining = 0;  // to be had at once
    double wait_s = 0;      // until one is to be had
    double reset_s = 0;     // until a whole minute's worth is to be had
  };

  // per_minute: 0 for no limit.
  void Set(int64_t per_minute);
  int64_t per_minute() const { return per_minute_; }

  // Uses up amount (0: just asks) if at least one is to be had. The answer describes what is left.
  Answer Take(int64_t amount, TimePoint now);
  // Uses up amount, whether it is there or not.
  void Charge(int64_t amount, TimePoint now);

 private:
  void Fill(TimePoint now);

  int64_t per_minute_ = 0;
  std::mutex mutex_;
  double level_ = 0;    // under mutex_
  TimePoint filled_{};  // under mutex_
};

}  // namespace deepinfer
