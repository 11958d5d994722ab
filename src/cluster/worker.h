// What a gateway asks of a worker: the one seam between the HTTP side and the engine side
// (architecture.md §2). InProcessWorker calls the engine directly.
// Thread rule: every method may be called from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "engine/request.h"
#include "engine/statistics.h"
#include "engine/step_trace.h"
#include "engine/store_statistics.h"

namespace deepinfer {

// Fixed facts about the model a worker serves.
struct WorkerInfo {
  std::string model_name;
  std::string numerics_id;  // numerics.md §1
  int32_t vocab_size = 0;
  int32_t max_model_len = 0;  // prompt plus generated tokens
  int32_t eos_token_id = 1;
};

// Snapshot for admission and routing.
struct LoadReport {
  int32_t running = 0;
  int32_t waiting = 0;
  int64_t kv_tokens = 0;
  int64_t kv_capacity_tokens = 0;
  bool draining = false;
};

class Worker {
 public:
  virtual ~Worker() = default;

  virtual const WorkerInfo& info() const = 0;

  // Queues a request. invalid_request: ids out of range or parameters outside their ranges;
  // resource_exhausted: queue full; unavailable: draining. The sink is called only on ok.
  virtual Status Submit(EngineRequest request, TokenSink sink) = 0;

  // Idempotent; unknown ids are fine. Takes effect within one step; the request then ends with
  // FinishReason::kCancelled.
  virtual void Cancel(std::string_view request_id) = 0;

  virtual LoadReport Load() const = 0;

  // False while a step does not come back. Never waits.
  virtual bool healthy() const = 0;

  // Counters and gauges since the start, for metrics and predictions.
  virtual EngineStatistics Statistics() const = 0;
  // Of the persistent cache, as of now; slower than Statistics. By default there is none.
  virtual StoreStatistics Store() const { return {}; }

  // Records the next num_steps steps, 1 to kMaxProfileSteps, or those before the deadline
  // (monotonic clock, µs). done is called once, on a thread of the worker, only on ok.
  // invalid_request: bad number; resource_exhausted: another profile is being recorded;
  // unsupported: no such worker.
  virtual Status Profile(int32_t /*num_steps*/, int64_t /*deadline_us*/, ProfileSink /*done*/) {
    return Unsupported("this worker records no profiles");
  }

  // Refuses new work, lets live requests finish until the deadline (monotonic clock, µs), then
  // cancels the rest. Returns when no request is left and every sink is destroyed.
  virtual void Drain(int64_t deadline_us) = 0;
};

}  // namespace deepinfer
