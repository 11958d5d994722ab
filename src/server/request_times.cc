#include "server/request_times.h"

#include <algorithm>

namespace deepinfer {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;

int64_t Nanos(SteadyTime time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

int64_t UtcMicros(std::chrono::system_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch()).count();
}

}  // namespace

LedgerTimes TimesOf(const RequestFacts& facts) {
  LedgerTimes time;
  time.recv = Nanos(facts.received);
  time.closed = Nanos(std::chrono::steady_clock::now());
  time.closed_utc_us = UtcMicros(std::chrono::system_clock::now());
  time.recv_utc_us = time.closed_utc_us - (time.closed - time.recv) / 1000;
  if (facts.admitted == SteadyTime{}) return time;
  time.admitted = Nanos(facts.admitted);
  if (facts.first_token == SteadyTime{}) return time;
  time.first_token = Nanos(facts.first_token);
  time.last_token = Nanos(facts.last_token);
  time.prefill_start = std::min(*time.admitted + facts.queue_us * 1000, *time.first_token);
  time.prefill_end = std::min(*time.prefill_start + facts.prefill_us * 1000, *time.first_token);
  if (facts.load_us > 0) {
    time.kv_load_start = std::min(*time.admitted + facts.load_after_us * 1000, *time.prefill_start);
    time.kv_load_end = std::min(*time.kv_load_start + facts.load_us * 1000, *time.prefill_start);
  }
  if (facts.transfer_us > 0) {
    // The engine that decodes began to count its time when the state had come.
    time.transfer_end = std::max(*time.last_token - facts.decode_us * 1000, *time.prefill_start);
    time.transfer_start = std::max(*time.transfer_end - facts.transfer_us * 1000, *time.admitted);
  }
  return time;
}

}  // namespace deepinfer
