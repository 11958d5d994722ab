#include "cluster/self_probe.h"

#include <utility>

#include "base/log.h"

namespace deepinfer {

SelfProbe::SelfProbe(const SelfProbeOptions& options, Worker* worker, const Clock* clock)
    : options_(options), worker_(worker), clock_(clock) {
  state_->since_us = clock->NowUs();
}

SelfProbe::~SelfProbe() {
  if (num_running() > 0) worker_->Cancel(id_);
}

void SelfProbe::Look(const LoadReport& load) {
  // A worker with half of the layers gives no token.
  if (options_.idle_us == 0 || load.draining || worker_->info().encoder_only) return;
  const int64_t now_us = clock_->NowUs();
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->running) return;
    // Steps that come back say as much, and those that do not are noticed without a probe.
    if (load.running + load.waiting > 0) {
      state_->since_us = now_us;
      state_->failed = false;
      return;
    }
    const int64_t wait_us = state_->failed ? options_.limit_us : options_.idle_us;
    if (now_us - state_->since_us < wait_us) return;
    state_->running = true;
    state_->since_us = now_us;
  }
  Begin();
}

void SelfProbe::Begin() {
  EngineRequest request;
  request.request_id = id_ = "self-probe-" + std::to_string(++num_probes_);
  request.attempt = 1;
  request.prompt_ids = {0};
  request.request_class = RequestClass::kBatch;
  request.sampling.temperature = 0;
  request.sampling.max_tokens = 1;
  request.sampling.ignore_eos = true;
  const auto end = [state = state_, clock = clock_](bool ok) {
    const std::lock_guard lock(state->mutex);
    state->running = false;
    state->failed = !ok;
    state->since_us = clock->NowUs();
  };
  const Status status = worker_->Submit(std::move(request), [end](const TokenEvent& event) {
    if (event.finish == FinishReason::kNone) return;
    end(event.finish == FinishReason::kLength || event.finish == FinishReason::kStop ||
        event.finish == FinishReason::kCancelled);
  });
  if (status.ok()) return;
  // Full or about to leave: no sign of a fault.
  const bool busy =
      status.code() == StatusCode::kResourceExhausted || status.code() == StatusCode::kUnavailable;
  Log(LogLevel::kWarning, "worker.probe_refused", {{"status", status}});
  end(busy);
}

bool SelfProbe::passes() const {
  const std::lock_guard lock(state_->mutex);
  if (!state_->running || state_->failed) return !state_->failed;
  return clock_->NowUs() - state_->since_us < options_.limit_us;
}

int32_t SelfProbe::num_running() const {
  const std::lock_guard lock(state_->mutex);
  return state_->running ? 1 : 0;
}

}  // namespace deepinfer
