// Device time that belongs to no request, as ledger lines of schema deepinfer.overhead.v1: with
// the lines of requests they add up to the wall time of a device (docs/economics.md section 3).
// Thread rule: values and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "economics/cost_book.h"

namespace deepinfer {

inline constexpr std::string_view kOverheadSchema = "deepinfer.overhead.v1";

enum class OverheadKind : unsigned char {
  kIdle,     // between steps, and parts of steps whose requests had ended
  kStartup,  // until the device could take requests
  kProbe,    // one-token runs of health checks
};
inline constexpr size_t kNumOverheadKinds = 3;

std::string_view OverheadKindName(OverheadKind kind);

// Whose time it is.
struct OverheadScope {
  std::string build_commit;
  std::string config_hash;
  std::string model_name;
  std::string host_id;
  std::string role;
  std::string process;  // 32 hex digits, another one after every start
  std::optional<std::string> run_id;
};

struct OverheadRecord {
  OverheadKind kind = OverheadKind::kIdle;
  OverheadScope scope;
  int64_t device = 0;  // index in the process
  // Of the monotonic clock of the host, and UTC.
  int64_t from_ns = 0;
  int64_t to_ns = 0;
  int64_t from_utc_us = 0;
  int64_t to_utc_us = 0;
  int64_t device_ns = 0;    // the overhead
  int64_t requests_ns = 0;  // of the same time, on lines of requests; kIdle only
  bool is_last = false;     // the process writes no more lines about this device
  std::optional<std::string> cost_book;
  Cost cost;

  // Both together are the time of the device that this line accounts for.
  int64_t wall_ns() const { return device_ns + requests_ns; }
};

// Fills cost_book and cost.
void CostOverhead(const CostBook& book, OverheadRecord* record);

// The line without its newline.
std::string FormatOverheadLine(const OverheadRecord& record);

// data_corruption names the field that is missing or has another type.
Result<OverheadRecord> ParseOverheadLine(std::string_view text);

}  // namespace deepinfer
