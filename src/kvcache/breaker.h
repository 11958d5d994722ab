// Keeps a failing or crawling disk from costing every request its deadline (kv_format.md §17).
// Thread rule: any thread, one lock.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>

namespace deepinfer {

enum class ReadPermit : uint8_t { kRefused, kGranted, kProbe };

class CircuitBreaker {
 public:
  // May a read be sent now? Open: no. Half open: one probe at a time.
  ReadPermit Allow(int64_t now_us);
  // The outcome of a read that was allowed.
  void Record(ReadPermit permit, bool ok, int64_t latency_us, int64_t now_us);
  // A read that has not ended after age_us, at the deadline of its load: an error when that is slow
  // by the measure of other reads. Its end is recorded like that of any other.
  void RecordLate(ReadPermit permit, int64_t age_us, int64_t now_us);
  // No read would be allowed now.
  bool IsOff(int64_t now_us) const;
  // "on", "degraded: <reason>" (probing) or "off: <reason>".
  std::string StateText(int64_t now_us) const;

 private:
  static constexpr int kWindow = 256;   // reads looked at
  static constexpr int kMaxErrors = 2;  // more than 1 % of the window
  static constexpr int64_t kFirstPauseUs = 5'000'000;
  static constexpr int64_t kLongestPauseUs = 300'000'000;
  static constexpr int64_t kMedianRangeUs = int64_t{3600} * 1'000'000;
  static constexpr int64_t kSlowFactor = 10;
  // Too slow must also be slow: a cache hit ten times slower than another is none of our business.
  static constexpr int64_t kMinSlowUs = 100'000;

  struct Sample {
    int64_t latency_us = 0;
    bool ok = true;
  };
  void Count(bool ok, int64_t latency_us, int64_t now_us);
  void EndProbe(bool good, int64_t now_us);
  void Trip(const char* reason, int64_t now_us);
  int64_t SlowUs() const;
  bool TooSlow() const;
  int64_t Quantile(double share) const;

  mutable std::mutex mutex_;
  std::array<Sample, kWindow> samples_{};
  int64_t num_samples_ = 0;
  double median_us_ = 0;  // slow average of window medians, over about an hour
  int64_t median_updated_us_ = 0;
  bool open_ = false;
  bool probing_ = false;
  int64_t retry_us_ = 0;
  int64_t pause_us_ = kFirstPauseUs;
  std::string reason_;
};

}  // namespace deepinfer
