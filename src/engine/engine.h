// The engine of one worker: turns token requests into streams of token events on its own step
// thread. Requests run one after another in order of arrival.
//
// Owner of the pages and the state slot; sequences borrow them and give them back when they end.
// Thread rule: public methods from any thread; sinks are called on the step thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_set>

#include "base/clock.h"
#include "base/result.h"
#include "engine/request.h"
#include "engine/sequence.h"
#include "model/model.h"

namespace deepinfer {

enum class DecoderTail : unsigned char {
  kCompact,  // prompt rows before the last window + 12 skip the decoder (model.md §13.1)
  kFull,     // every row runs every layer
};

struct EngineOptions {
  int32_t max_model_len = 32768;  // clipped to the model
  int32_t max_num_batched_tokens = 512;
  int32_t max_queued_requests = 1024;
  DecoderTail decoder_tail = DecoderTail::kCompact;
};

struct EngineStats {
  int32_t running = 0;
  int32_t waiting = 0;
  int64_t kv_tokens = 0;  // positions held by live sequences
  int64_t kv_capacity_tokens = 0;
  int64_t blocks_acquired = 0;  // acquired - released is 0 when idle
  int64_t blocks_released = 0;
  int64_t slots_acquired = 0;
  int64_t slots_released = 0;
};

class Engine {
 public:
  // model and clock are borrowed. resource_exhausted when the pages do not fit into memory.
  static Result<std::unique_ptr<Engine>> Create(Model* model, const EngineOptions& options,
                                                const Clock* clock);
  // Cancels everything and joins the step thread.
  ~Engine();

  int32_t max_model_len() const { return options_.max_model_len; }

  // Contract of Worker::Submit, Cancel, Drain (cluster/worker.h).
  Status Submit(EngineRequest request, TokenSink sink);
  void Cancel(std::string_view request_id);
  void Drain(int64_t deadline_us);

  EngineStats Stats() const;
  bool draining() const;

 private:
  Engine(Model* model, const EngineOptions& options, const Clock* clock)
      : model_(model), options_(options), clock_(clock) {}

  void StepLoop();
  // The next request to run; null when the engine stops.
  std::unique_ptr<Sequence> NextSequence();
  void RunSequence(Sequence* sequence);
  // The reason a request must end before its next step, or kNone; the caller holds mutex_.
  FinishReason EarlyEnd(const Sequence& sequence, int64_t now_us) const;
  FinishReason EndBeforeStep(const Sequence& sequence);
  // Ends queued requests that were cancelled or have waited past one of their deadlines.
  void EndWaiting();
  // Sends the last event. The id is free before the client learns of the end, so it may be reused
  // at once; Drain returns only after the sink returned and was destroyed.
  void Finish(Sequence* sequence, TokenEvent last);
  FinishReason EndAfterToken(const Sequence& sequence, int32_t* stop_token_id) const;
  void Deliver(Sequence* sequence, TokenEvent event);
  void Acquire(Sequence* sequence);
  void Release(Sequence* sequence);

  Model* model_;
  EngineOptions options_;
  const Clock* clock_;
  std::byte* pool_ = nullptr;
  std::byte* slot_ = nullptr;
  int64_t num_blocks_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable wake_;     // work, cancellation or stop
  std::condition_variable drained_;  // num_unfinished_ is 0
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::unordered_set<std::string> live_;       // ids whose last event is still to come
  std::unordered_set<std::string> cancelled_;  // subset of live_
  int64_t num_unfinished_ = 0;                 // requests whose last sink call has not returned
  EngineStats stats_;
  bool draining_ = false;
  bool stop_ = false;
  std::thread step_thread_;
};

}  // namespace deepinfer
