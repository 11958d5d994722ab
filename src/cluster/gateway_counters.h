// What a gateway has done, and how its queue stands now.
// Thread rule: values. Owner: Gateway.
#pragma once

#include <array>
#include <cstdint>

#include "cluster/busy_shares.h"
#include "cluster/prefix_probe.h"
#include "cluster/route_forecasts.h"
#include "sched/request_class.h"

namespace deepinfer {

struct GatewayCounters {
  // Since the start.
  int64_t redispatched = 0;  // attempts after the first
  int64_t migrated = 0;      // of these, with tokens the client already had
  int64_t hand_offs = 0;     // attempts split between a prefill and a decode worker
  int64_t adopted = 0;       // runs taken over from a gateway that was lost
  int64_t shed = 0;          // requests refused because they would miss what is promised
  int64_t over_budget = 0;   // refused because their tenant has used up its budget
  int64_t queued = 0;        // requests that waited here
  int64_t openings = 0;      // circuits opened because a worker or a pair failed
  PrefixProbe::Counts probes;
  RouteForecasts::Errors forecast_errors;
  // Now.
  std::array<int64_t, kRequestClasses.size()> waiting{};  // here, by class
  int64_t oldest_wait_us = 0;
  int64_t ready_workers = 0;
  int64_t orphans = 0;      // runs of lost gateways that workers have told of
  int64_t leases_held = 0;  // of hand-offs between workers
  int64_t barred_workers = 0;
  int64_t barred_pairs = 0;
  BusyShares::ByRole busiest{};
};

}  // namespace deepinfer
