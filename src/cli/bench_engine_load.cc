#include "cli/bench_engine_load.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/philox.h"

namespace deepinfer {

namespace {

using std::chrono::steady_clock;

constexpr uint64_t kPromptSeed = 1;
// Ids below are begin, end and pad.
constexpr uint32_t kFirstTextId = 3;
// Longer than any load that somebody waits for.
constexpr std::chrono::minutes kPatience{30};

}  // namespace

double Micros(steady_clock::duration d) {
  return std::chrono::duration<double, std::micro>(d).count();
}

double Percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double rank = std::ceil(share * static_cast<double>(values.size()));
  return values[static_cast<size_t>(std::max(1.0, rank)) - 1];
}

EngineRequest RandomRequest(uint32_t number, int32_t vocab_size, int32_t prompt_len,
                            int32_t max_tokens) {
  EngineRequest r;
  r.request_id = "bench-" + std::to_string(number);
  const auto num_text_ids = static_cast<uint32_t>(vocab_size) - kFirstTextId;
  for (int32_t i = 0; i < prompt_len; ++i) {
    const PhiloxBlock bits =
        RandomBlock(kPromptSeed, static_cast<uint64_t>(i), RandomPurpose::kSample, number);
    r.prompt_ids.push_back(static_cast<int32_t>(kFirstTextId + bits[0] % num_text_ids));
  }
  r.sampling.temperature = 0.0f;
  r.sampling.max_tokens = max_tokens;
  r.sampling.ignore_eos = true;
  return r;
}

TokenSink LoadReceiver::Sink() {
  size_t index = 0;
  {
    const std::lock_guard lock(mutex_);
    index = arrivals_.size();
    arrivals_.emplace_back();
    ++running_;
  }
  return [this, index](TokenEvent event) {
    const std::lock_guard lock(mutex_);
    std::vector<TimePoint>& times = arrivals_[index];
    const bool had_wanted = times.size() >= num_wanted_;
    times.insert(times.end(), event.ids.size(), steady_clock::now());
    const bool ended = event.finish != FinishReason::kNone;
    if (ended) {
      last_events_.push_back(std::move(event));
      --running_;
    }
    // A waiting thread that looks at every event would be part of what is measured.
    if (ended || (!had_wanted && times.size() >= num_wanted_)) changed_.notify_all();
  };
}

Status LoadReceiver::WaitForTokens(size_t of_each) {
  std::unique_lock lock(mutex_);
  num_wanted_ = of_each;
  const bool in_time = changed_.wait_for(lock, kPatience, [&] {
    return running_ == 0 || std::all_of(arrivals_.begin(), arrivals_.end(),
                                        [&](const auto& times) { return times.size() >= of_each; });
  });
  return in_time ? OkStatus() : DeadlineExceeded("the engine yields no tokens");
}

Status LoadReceiver::WaitAll() {
  std::unique_lock lock(mutex_);
  const bool in_time = changed_.wait_for(lock, kPatience, [&] { return running_ == 0; });
  if (!in_time) return DeadlineExceeded("the engine does not end its requests");
  for (const TokenEvent& event : last_events_) DI_RETURN_IF_ERROR(event.status);
  return OkStatus();
}

}  // namespace deepinfer
