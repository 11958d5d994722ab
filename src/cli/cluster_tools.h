// What the subcommands of `cluster` do.
// Thread rule: main thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace deepinfer {

struct ClusterUpOptions {
  std::string model;
  int num_all = 0;
  int num_prefill = 0;
  int num_decode = 0;
  std::string registry;  // address, or "dev": one of its own; empty: none
  std::string host = "127.0.0.1";
  uint16_t port = 8000;
  std::string dir;
  int threads = 0;
  std::vector<std::string> worker_flags;
  std::vector<std::string> gateway_flags;
};

// Runs until a stop signal.
Status ClusterUp(const ClusterUpOptions& options);

Status PrintClusterStatus(const std::string& dir, bool as_json);

// worker is a name of the cluster in dir, or an endpoint.
Status DrainWorker(const std::string& dir, const std::string& worker, double within_s);

}  // namespace deepinfer
