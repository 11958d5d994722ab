// Whether stored blocks of a prompt are loaded or computed again, and how long a load may take
// (kv_format.md §20).
// Thread rule: one owner. Owner: the engine.
#pragma once

#include <cstdint>

namespace deepinfer {

// Time of a load as fixed part and part per token, by least squares over measured loads that fade
// with a half-life of 30 s.
class LoadTimeModel {
 public:
  // Microseconds; 0 while nothing recent is known: then a load is worth trying.
  double PredictUs(int64_t num_tokens, int64_t now_us) const;
  // Learns that num_tokens > 0 arrived within elapsed_us.
  void Observe(int64_t num_tokens, int64_t elapsed_us, int64_t now_us);

 private:
  double Fade(int64_t now_us) const;

  double weight_ = 0;
  double tokens_ = 0;
  double time_us_ = 0;
  double tokens_squared_ = 0;
  double tokens_time_ = 0;
  int64_t updated_us_ = 0;
};

inline constexpr int64_t kNoSlackUs = INT64_MAX;

// Below this even a healthy disk under a busy scheduler is late.
inline constexpr int64_t kMinLoadWaitUs = 10'000;

struct LoadInput {
  double load_us = 0;             // predicted; 0: unknown
  double saved_us = 0;            // prefill time that the load saves; 0: unknown
  int64_t slack_us = kNoSlackUs;  // until the request is late, after its prefill
  int64_t min_wait_us = kMinLoadWaitUs;
};

struct LoadChoice {
  bool load = false;
  int64_t wait_us = 0;  // longest time the load may take
};

LoadChoice ChooseLoad(const LoadInput& input);

}  // namespace deepinfer
