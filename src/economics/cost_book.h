// Cost books: what device time, wear, traffic and operation cost (docs/economics.md section 5).
// Thread rule: immutable after load. Owner: whoever prices lines with it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "economics/money.h"

namespace deepinfer {

// What a line used, as far as it was measured.
struct UsedResources {
  int64_t device_ns = 0;
  int64_t cpu_ns = 0;
  int64_t disk_write_bytes = 0;
  // Over the network.
  int64_t client_bytes = 0;
  int64_t handoff_bytes = 0;
  int64_t store_bytes = 0;
  int64_t control_bytes = 0;
};

struct Cost {
  Pico compute = 0;
  Pico storage = 0;
  Pico network = 0;
  Pico operations = 0;

  PicoSum Total() const { return PicoSum{compute} + storage + network + operations; }
  friend bool operator==(const Cost&, const Cost&) = default;
};

class CostBook {
 public:
  // device: which entry of device_hour applies; "" where there is one only. invalid_request names
  // the field.
  static Result<CostBook> Parse(std::string_view json, const std::string& device = "");
  // not_found, invalid_request.
  static Result<CostBook> Load(const std::string& path, const std::string& device = "");

  const std::string& id() const { return id_; }
  const std::string& currency() const { return currency_; }

  // Every part is rounded down to whole pico-units.
  Cost Price(const UsedResources& used) const;

 private:
  friend class CostBookReader;

  std::string id_;
  std::string currency_;
  Pico device_hour_ = 0;
  Pico operations_hour_ = 0;  // beside a device that is bare; what an all-in rate leaves out
  Pico core_hour_ = 0;
  Pico client_gb_ = 0;
  Pico handoff_gb_ = 0;
  Pico store_gb_ = 0;
  Pico control_gb_ = 0;
  Pico disk_price_ = 0;
  int64_t disk_rated_bytes_ = 0;  // written in its life; 0: no disk in the book
};

}  // namespace deepinfer
