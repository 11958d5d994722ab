// What the routes of one server share.
// Thread rule: any thread; the fields say what guards them.
// Owner: server/server.cc.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/load_progress.h"
#include "server/api_error.h"
#include "server/api_keys.h"
#include "server/key_budgets.h"
#include "server/metrics.h"
#include "server/model_context.h"
#include "server/prefix_log.h"
#include "server/replay_store.h"
#include "server/request_account.h"
#include "server/server_options.h"
#include "server/work_names.h"
#include "server/work_pool.h"

namespace deepinfer {

// A model together with the options that depend on it.
struct ServedModel {
  ModelContext context;
  ChatRequestOptions chat;  // ServerOptions::chat completed
};

// Counts generations, so that Stop can wait until no worker will call back any more.
class LiveCount {
 public:
  void Add();
  void Remove();
  void WaitZero();
  // False when the deadline came first.
  bool WaitZeroUntil(std::chrono::steady_clock::time_point deadline);

 private:
  std::mutex mutex_;
  std::condition_variable zero_;
  int64_t count_ = 0;
};

// Result of the last /health_generate run.
struct GenerateProbe {
  std::mutex mutex;
  bool running = false;
  bool has_result = false;
  bool ok = false;
  std::chrono::steady_clock::time_point finished;
  std::atomic<int64_t> device_ns{0};  // of all runs
  std::vector<std::function<void(bool ok)>> waiters;
};

struct ServerState {
  // ledger: null for none.
  ServerState(ServerOptions options_in, ApiKeys keys_in, std::unique_ptr<KeyBudgets> budgets_in,
              const LoadProgress* progress_in, std::unique_ptr<LedgerWriter> ledger);

  const ServerOptions options;
  const ApiKeys keys;
  const std::unique_ptr<KeyBudgets> budgets;
  const LoadProgress* const progress;

  WorkPool prepare_pool;
  WorkPool tokenize_pool;
  WorkPool stream_pool;
  ServerMetrics metrics;
  RequestAccount account;
  WorkNames work_names;
  std::unique_ptr<TraceExporter> traces;  // null: nothing is traced
  SteadyClock clock;
  ReplayStore replay;
  PrefixLog prefixes;  // filled with debug_endpoints only
  LiveCount generations;
  GenerateProbe probe;

  std::atomic<bool> draining{false};
  std::atomic<bool> failed{false};

  // Null until a model is attached.
  std::shared_ptr<const ServedModel> model() const;
  void SetModel(std::shared_ptr<const ServedModel> model);

  bool Serves(std::string_view model_name) const;

  // "deepinfer-<version>-<config hash 8>"
  std::string SystemFingerprint() const;

  // Why no generation can start now: loading, failed, draining. Nothing when it can.
  std::optional<ApiError> Unavailability() const;

  // The engine of the attached model does not finish its step. Never waits.
  bool stalled() const;

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const ServedModel> model_;  // under mutex_
};

}  // namespace deepinfer
