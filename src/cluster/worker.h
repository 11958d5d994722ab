// What a gateway asks of a worker: the one seam between the HTTP side and the engine side
// (architecture.md §2). InProcessWorker calls the engine directly, RemoteWorker one in another
// process.
// Thread rule: every method may be called from any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"
#include "base/status.h"
#include "cluster/hand_off_counters.h"
#include "cluster/queue_forecast.h"
#include "engine/request.h"
#include "engine/statistics.h"
#include "engine/step_trace.h"
#include "engine/store_statistics.h"
#include "kvcache/keys.h"

namespace deepinfer {

// What a worker does in a cluster; each can do everything when the others are gone.
enum class WorkerRole : unsigned char {
  kAll,      // prompts and answers
  kPrefill,  // prompts, handed over after the first token
  kDecode,   // answers of prompts that others ran
};
inline constexpr size_t kNumWorkerRoles = 3;

std::string_view WorkerRoleName(WorkerRole role);
std::optional<WorkerRole> ParseWorkerRole(std::string_view name);

// Fixed facts about a worker and the model it serves.
struct WorkerInfo {
  std::string model_name;
  std::string numerics_id;  // numerics.md §1
  int32_t vocab_size = 0;
  int32_t max_model_len = 0;  // prompt plus generated tokens
  int32_t eos_token_id = 1;
  WorkerRole role = WorkerRole::kAll;
  int64_t kv_slot_bytes = 0;  // of the state of one sequence
  int64_t kv_block_bytes = 0;
  std::vector<int64_t> kv_section_bytes;  // of a block, one for each KV source
  int64_t cut_row_bytes = 0;              // of a row between encoder and decoder
  std::string kv_root;               // equal on workers that share a persistent cache; empty: none
  bool encoder_only = false;         // holds the layers below the decoder: no answers run here
  bool full_decoder_tail = false;    // all rows of a prompt run the decoder
  bool hands_over_by_store = false;  // its prompts: only to workers that share its kv_root
  std::string weights_hash;          // of the checkpoint, in hexadecimal; empty: not known
  // Of the keys of its blocks (kvcache/keys.h); nothing: prompts share no prefixes.
  std::optional<Sha256Digest> kv_namespace;
  bool answers_probes = false;  // has a persistent cache, of which it can be asked
  // Of a worker in another process.
  std::string endpoint;
  uint64_t incarnation = 0;
  int64_t pid = 0;
  std::string revision;  // of a deployment: states move only between workers of one revision
};

// What its prompt asks of a worker.
PromptWork PromptOf(const EngineRequest& request);

// How its queue moves.
WorkerQueue QueueOf(const EngineStatistics& statistics);

// Snapshot for admission and routing.
struct LoadReport {
  int32_t running = 0;
  int32_t waiting = 0;
  int32_t max_running = 0;  // at once, 0: unknown
  int64_t kv_tokens = 0;
  int64_t kv_capacity_tokens = 0;
  bool draining = false;
  int64_t queued_prompt_tokens = 0;  // rows that waiting and unfinished prompts still need
  bool ready = true;                 // it can be reached and its steps come back
  HandOffCounters hand_offs;
  PredictedCosts costs;
  int32_t orphans = 0;     // runs of gateways that are lost
  int64_t kept_bytes = 0;  // of events that a worker remembers for another gateway
  int32_t gateways = 1;    // that share the worker
};

class Worker {
 public:
  virtual ~Worker() = default;

  virtual WorkerInfo info() const = 0;
  // The same, never null, without a copy where a worker has it so: routing asks every worker for
  // every request. What is returned never changes.
  virtual std::shared_ptr<const WorkerInfo> shared_info() const;

  // Queues a request. invalid_request: ids out of range or parameters outside their ranges;
  // resource_exhausted: queue full; unavailable: draining or out of reach. The sink is called only
  // on ok. A worker that is lost later ends the request with kError and unavailable.
  virtual Status Submit(EngineRequest request, TokenSink sink) = 0;

  // Two halves of one request, with the same id and attempt. The decode worker is told first; it
  // waits for the state of the request, then streams from the first token on. The prefill worker
  // streams the first token too, hands over and ends with kHandedOff. unsupported by default.
  virtual Status SubmitDecode(EngineRequest request, TokenSink sink);
  virtual Status SubmitPrefill(EngineRequest request, const std::string& decode_endpoint,
                               TokenSink sink);

  // Takes over the run with the work id of the request that another gateway left: it goes on under
  // this request's id and attempt, and the sink gets its events from the first on. not_found when
  // there is none. May wait for a moment.
  virtual Status Adopt(const EngineRequest& request, TokenSink sink);

  // What the persistent cache of the worker holds of a prompt of so many tokens that begins with
  // blocks of these keys. Waits no longer than the limit; nothing when there was no answer.
  virtual std::optional<StoredPrefix> Probe(std::span<const BlockKey> keys, int32_t prompt_tokens,
                                            std::chrono::microseconds limit);

  // Idempotent; unknown ids are fine. Takes effect within one step; the request then ends with
  // FinishReason::kCancelled.
  virtual void Cancel(std::string_view request_id) = 0;

  virtual LoadReport Load() const = 0;

  // False while a step does not come back. Never waits.
  virtual bool healthy() const = 0;

  // Counters and gauges since the start, for metrics and predictions.
  virtual EngineStatistics Statistics() const = 0;
  // Of these what tells how fast its queue moves, which admission asks for every request.
  virtual WorkerQueue Queue() const;
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

  // House-keeping, called by the owner about ten times a second.
  virtual void Sweep(int64_t now_us);
};

}  // namespace deepinfer
