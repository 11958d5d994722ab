// What the subcommands of `cluster` do.
// Thread rule: main thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/tls_flags.h"

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
  std::string kv_dir;  // of the persistent cache that all workers share; empty: none
  // Of a rolling restart. Loading the weights of a large model takes minutes.
  int64_t start_limit_s = 600;
  int64_t leave_limit_s = 900;
  std::vector<std::string> worker_flags;
  std::vector<std::string> prefill_flags;  // for workers that run prompts
  std::vector<std::string> gateway_flags;
  TlsFlags tls;
};

// A cluster of this machine as its tools find it.
struct ClusterPlace {
  std::string dir;
  SecurityPtr security;
};

// Runs until a stop signal.
Status ClusterUp(const ClusterUpOptions& options);

Status PrintClusterStatus(const ClusterPlace& place, bool as_json);

// Shows the workers once a second until a stop signal; rounds 0: without end.
Status ShowClusterTop(const ClusterPlace& place, int rounds);

// worker is a name of the cluster in its folder, or an endpoint.
Status SetWorkerRole(const ClusterPlace& place, const std::string& worker, const std::string& role);
Status DrainWorker(const ClusterPlace& place, const std::string& worker, double within_s);

}  // namespace deepinfer
