// Why a block of a prompt was not taken from the cache: the label of missed tokens in metrics and
// log lines (kv_format.md §17).
// Thread rule: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace deepinfer {

enum class MissReason : uint8_t {
  kNone,       // nothing was missed
  kAbsent,     // not stored, or its file is gone
  kReplayGen,  // stored, but from a replay that the request does not accept
  kTooShort,   // stored, but the hit would save less than its replay costs
  kSlower,     // computing was predicted to be faster than loading
  kDeadline,   // loading took longer than it may
  kBreaker,    // the tier is switched off after faults
  kIoError,
  kCorrupt,       // a check of the record failed
  kExpired,       // was stored until the end of its class's time
  kEvictedEarly,  // was stored, and gave its space to others before that
};
inline constexpr size_t kNumMissReasons = 11;

constexpr std::string_view MissReasonName(MissReason reason) {
  constexpr std::string_view kNames[kNumMissReasons] = {
      "none",    "absent",   "replay_gen", "too_short", "slower",       "deadline",
      "breaker", "io_error", "corrupt",    "expired",   "evicted_early"};
  return kNames[static_cast<size_t>(reason)];
}

}  // namespace deepinfer
