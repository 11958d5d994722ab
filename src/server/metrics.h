// Prometheus series of the HTTP side (api.md §16); those of the engines: engine_metrics.h. Label
// values come from closed sets. Thread rule: any thread. Owner: server/server_state.h.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/gateway_counters.h"
#include "engine/statistics.h"
#include "engine/store_statistics.h"
#include "server/metrics_compat.h"
#include "server/request_record.h"
#include "text/output_event.h"

namespace deepinfer {

// Since the start.
struct AccountTotals {
  std::array<double, 4> earned_usd{};  // hit, miss, output, cache_write
  std::array<double, 4> spent_usd{};   // compute, storage, network, operations
  int64_t ledger_dropped = 0;          // lines that could not be written
  int64_t traces_exported = 0;         // requests
  int64_t traces_dropped = 0;
};

class ServerMetrics {
 public:
  ServerMetrics(const std::string& model_name, MetricsCompat compat);
  ~ServerMetrics();

  // The HTTP side of a finished request: count, times, sizes, error code.
  void OnRequest(const RequestFacts& facts);
  // The tokens and times of a generation; counted before the client can see that it ended, so
  // that a scrape behind an answer includes it.
  void OnGeneration(const RequestFacts& facts);
  // Tokens generated for nobody, known only when the engine has let go of the request.
  void OnWastedTokens(int64_t count);
  // Time between two events of a choice, the second with num_tokens tokens.
  void OnTokens(double seconds, int64_t num_tokens);
  void OnFinish(std::string_view finish_reason);
  void OnError(std::string_view code);
  void OnParserEvents(const MalformedCounts& counts);
  // The engine refused what the validator let through: a defect of ours.
  void OnValidatorGap();
  void OnNanLogprobs(int64_t count);
  // Turns with calls that came back: as they were sampled, or changed.
  void OnReplayedTurns(int32_t num_used, int32_t num_changed);
  void OnLoopDelay(std::chrono::nanoseconds delay);
  void OnUnknownFields(const std::vector<std::string>& fields);

  // Text exposition format; the present state of each engine, its persistent cache, the account and
  // the gateway.
  std::string Serialize(const std::vector<EngineStatistics>& engines,
                        const std::vector<StoreStatistics>& stores = {},
                        const AccountTotals& account = {}, const GatewayCounters& gateway = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer
