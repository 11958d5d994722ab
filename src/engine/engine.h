// The engine of one worker: turns token requests into streams of token events. Steps mix decode
// rows and prompt chunks of many requests (architecture.md §8).
//
// Owner of all state of requests. Thread rule: public methods from any thread; sinks are called on
// the engine thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "engine/engine_state.h"
#include "engine/flight_record.h"
#include "engine/options.h"
#include "engine/profiler.h"
#include "engine/request.h"
#include "engine/step_executor.h"
#include "engine/store_statistics.h"
#include "engine/store_watch.h"
#include "engine/watchdog.h"
#include "model/model.h"

namespace deepinfer {

class Engine {
 public:
  // model, clock, grammars and store are borrowed; without grammars, requests that bring one are
  // refused; without a store cached blocks live in memory only. invalid_request: options that
  // cannot work, or a store of another layout; resource_exhausted: the cache does not fit into
  // memory.
  static Result<std::unique_ptr<Engine>> Create(Model* model, const EngineOptions& options,
                                                const Clock* clock, GrammarPool* grammars = nullptr,
                                                KvStore* store = nullptr);
  // Cancels everything, waits for pins of blocks that state sinks hold, and joins the engine's
  // threads.
  ~Engine();

  int32_t max_model_len() const { return max_model_len_; }
  DecoderTail decoder_tail() const { return state_.options.decoder_tail; }
  // Of the keys of its blocks; nothing when requests share no prefixes.
  std::optional<Sha256Digest> kv_namespace() const {
    return prefix_cache_ ? std::optional(key_origin_.namespace_id) : std::nullopt;
  }

  // Contract of Worker::Submit, Cancel, Drain (cluster/worker.h).
  Status Submit(EngineRequest request, TokenSink sink);
  void Cancel(std::string_view request_id);
  void Drain(int64_t deadline_us);

  // Contract of Worker::Profile (cluster/worker.h).
  Status Profile(int32_t num_steps, int64_t deadline_us, ProfileSink done);

  // Whether there is a persistent cache.
  bool has_store() const { return store_ != nullptr; }
  // What the persistent cache holds of a prompt of so many tokens that begins with blocks of these
  // keys. Reads an index: never waits for a step or the disk.
  StoredPrefix FindStored(std::span<const BlockKey> keys, int32_t prompt_tokens) const;

  // As of the end of the last step.
  EngineStatistics Statistics() const;
  // Of the persistent store, as of now.
  StoreStatistics Store() const;
  // False while it hangs (engine/watchdog.h). Takes no lock.
  bool healthy() const { return watchdog_.healthy(); }
  bool draining() const;

 private:
  class Waker;

  // What other threads ask for, taken over between steps.
  struct Inbox {
    std::vector<std::unique_ptr<Sequence>> submitted;
    std::unordered_set<int64_t> cancelled;
    std::optional<ProfileRequest> profile;
    bool stop = false;
  };

  Engine(Model* model, const EngineOptions& options, const Clock* clock,
         std::unique_ptr<KvMemory> memory, GrammarPool* grammars, KvStore* store);

  // Before the first step and after the last one.
  void LoadStepTimes();
  void KeepStepTimes() const;

  void Loop();
  // Between steps: requests in, cancellations, deadlines, receivers that do not keep up, parking.
  // True when the engine shall stop.
  bool TakeInbox();
  void Accept(std::unique_ptr<Sequence> s);
  // Queues a sequence, behind its leader if it is a branch.
  void Route(Sequence& s);
  // Queues those whose grammar is ready, ends those whose grammar was refused.
  void CheckGrammars();
  void CheckDeadlines(int64_t now_us);
  void CheckReceivers(int64_t now_us);
  void FinishParking();
  // Waits until something changes, at most so long.
  void Sleep(std::chrono::milliseconds limit);

  void Process(std::unique_ptr<StepJob> job);
  void ProcessItem(StepItem* item);
  // On the watchdog's thread: what runs, what ran, and where the threads are.
  void ReportHang(std::string_view cause, int64_t still_us) const;
  void RecordStep(const StepJob& job);

  // Ends a prompt whose answer runs elsewhere.
  void HandOver(Sequence& s, TokenEvent last);

  // Branches forked from a prompt that failed hold its failure.
  void FailBranches(const Sequence& leader, const Status& status);
  void Deliver(Sequence& s, TokenEvent event);
  // Sends the last event. The id is free before the client learns of the end, so it may be reused
  // at once; Drain returns only after the sink returned and was destroyed.
  void Finish(Sequence& s, TokenEvent last);
  void FinishEarly(Sequence& s, FinishReason reason, Status status = OkStatus());
  // Forgets an ended sequence once its rows are out of flight.
  void Forget(Sequence& s);
  // Before the first step behind a pause is launched.
  void NoteBusy();
  // Makes the statistics visible to other threads.
  void Publish();

  const Clock* clock_;
  const int64_t began_us_;
  const KvStore* const store_;
  const int32_t vocab_size_;
  const int32_t max_model_len_;
  const int32_t max_queued_requests_;
  const bool prefix_cache_;
  const KeyOrigin key_origin_;
  GrammarPool* const grammars_;

  EngineState state_;  // engine thread
  FlightRecord flight_record_;
  Profiler profiler_;
  StoreWatch store_watch_;
  StepExecutor executor_;
  int32_t num_launched_ = 0;  // jobs not yet processed
  int64_t num_jobs_ = 0;
  int64_t last_step_end_us_ = 0;

  std::shared_ptr<Waker> waker_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;     // the inbox or a receiver changed
  std::condition_variable drained_;  // num_unfinished_ is 0
  Inbox inbox_;
  std::unordered_map<std::string, int64_t> live_;  // ids whose last event is still to come
  int64_t next_id_ = 1;
  int64_t num_unfinished_ = 0;  // requests whose last sink call has not returned
  EngineStatistics published_;
  // Steps that began before have ended and are in published_. Never goes back: while nothing runs
  // every look moves it on, and the next step begins behind the last look.
  mutable int64_t known_until_us_ = began_us_;
  bool idle_ = true;  // nothing runs
  bool woken_ = false;
  bool draining_ = false;
  bool profiling_ = false;
  Watchdog watchdog_;
  std::thread thread_;
};

}  // namespace deepinfer
