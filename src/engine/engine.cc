#include "engine/engine.h"

#include <algorithm>
#include <numeric>

#include "base/log.h"
#include "engine/actions/decode.h"
#include "engine/actions/prefill.h"

namespace deepinfer {

namespace {

// A wait on the system's clock must not overflow it.
constexpr int64_t kMaxDrainUs = int64_t{365} * 24 * 3600 * 1'000'000;

bool IsPast(int64_t deadline_us, int64_t now_us) {
  return deadline_us != 0 && now_us >= deadline_us;
}

Status EarlyEndStatus(FinishReason reason) {
  if (reason == FinishReason::kDeadline) {
    return DeadlineExceeded("the deadline of the request passed");
  }
  if (reason == FinishReason::kQueueTimeout) {
    return Unavailable("the request waited too long for its turn");
  }
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::Create(Model* model, const EngineOptions& options,
                                               const Clock* clock) {
  std::unique_ptr<Engine> engine(new Engine(model, options, clock));
  EngineOptions& o = engine->options_;
  o.max_model_len = std::min(o.max_model_len, model->max_positions());
  if (o.max_model_len < 2) return InvalidRequest("max_model_len must be at least 2");
  if (o.max_num_batched_tokens < 1) {
    return InvalidRequest("max_num_batched_tokens must be at least 1");
  }
  const KvLayout& layout = model->layout();
  engine->num_blocks_ = KvLayout::NumBlocks(o.max_model_len);
  const int64_t pool_bytes = engine->num_blocks_ * layout.block_bytes;
  engine->pool_ = model->ops()->Allocate(pool_bytes);
  engine->slot_ = model->ops()->Allocate(layout.slot_bytes);
  if (engine->pool_ == nullptr || engine->slot_ == nullptr) {
    return ResourceExhausted("no memory for " + std::to_string(pool_bytes) +
                             " bytes of KV cache: lower --max-model-len");
  }
  engine->stats_.kv_capacity_tokens = engine->num_blocks_ * kBlockTokens;
  engine->step_thread_ = std::thread([e = engine.get()] { e->StepLoop(); });
  return engine;
}

Engine::~Engine() {
  {
    const std::lock_guard lock(mutex_);
    draining_ = stop_ = true;
    cancelled_ = live_;
  }
  wake_.notify_all();
  if (step_thread_.joinable()) step_thread_.join();
  model_->ops()->Free(pool_);
  model_->ops()->Free(slot_);
}

Status Engine::Submit(EngineRequest request, TokenSink sink) {
  DI_RETURN_IF_ERROR(ValidateRequest(request, model_->config().vocab_size, options_.max_model_len));
  auto sequence = std::make_unique<Sequence>(std::move(request), std::move(sink), model_->config(),
                                             clock_->NowUs());
  {
    const std::lock_guard lock(mutex_);
    if (draining_) return Unavailable("the engine is draining");
    if (static_cast<int32_t>(waiting_.size()) >= options_.max_queued_requests) {
      return ResourceExhausted("the queue is full");
    }
    if (!live_.insert(sequence->request.request_id).second) {
      return InvalidRequest("request id '" + sequence->request.request_id + "' is already live");
    }
    waiting_.push_back(std::move(sequence));
    ++stats_.waiting;
    ++num_unfinished_;
  }
  wake_.notify_all();
  return OkStatus();
}

void Engine::Cancel(std::string_view request_id) {
  {
    const std::lock_guard lock(mutex_);
    std::string id(request_id);
    if (live_.contains(id)) cancelled_.insert(std::move(id));
  }
  wake_.notify_all();
}

void Engine::Drain(int64_t deadline_us) {
  const auto is_drained = [this] { return num_unfinished_ == 0; };
  const int64_t now_us = clock_->NowUs();
  std::unique_lock lock(mutex_);
  draining_ = true;
  const int64_t remaining_us =
      deadline_us <= now_us ? 0 : std::min(deadline_us - now_us, kMaxDrainUs);
  if (drained_.wait_for(lock, std::chrono::microseconds(remaining_us), is_drained)) return;
  cancelled_ = live_;
  wake_.notify_all();
  drained_.wait(lock, is_drained);
}

EngineStats Engine::Stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

bool Engine::draining() const {
  const std::lock_guard lock(mutex_);
  return draining_;
}

void Engine::StepLoop() {
  while (const std::unique_ptr<Sequence> sequence = NextSequence()) RunSequence(sequence.get());
}

std::unique_ptr<Sequence> Engine::NextSequence() {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
      if (waiting_.empty()) return nullptr;
    }
    // The last step of the request before may have outlasted a deadline.
    EndWaiting();
    const std::lock_guard lock(mutex_);
    if (waiting_.empty()) continue;
    std::unique_ptr<Sequence> next = std::move(waiting_.front());
    waiting_.pop_front();
    --stats_.waiting;
    ++stats_.running;
    return next;
  }
}

void Engine::RunSequence(Sequence* s) {
  s->started_us = clock_->NowUs();
  s->counters.queue_us = s->started_us - s->submitted_us;
  Acquire(s);
  PrefillAction prefill(options_.max_num_batched_tokens);
  DecodeAction decode;
  StepState state;
  state.model = model_;
  state.sequence = s;
  TokenEvent last;
  while (last.finish == FinishReason::kNone) {
    EndWaiting();
    last.finish = EndBeforeStep(*s);
    if (last.finish != FinishReason::kNone) {
      last.status = EarlyEndStatus(last.finish);
      break;
    }
    const bool in_prefill = s->in_prefill();
    Action& action = in_prefill ? static_cast<Action&>(prefill) : decode;
    state.event = {};
    const Status status = action.Step(&state);
    const int64_t now = clock_->NowUs();
    if (in_prefill) {
      s->prefilled_us = now;
      s->counters.prefill_us = now - s->started_us;
    } else {
      s->counters.decode_us = now - s->prefilled_us;
    }
    if (!status.ok()) {
      const bool is_clients_fault = status.code() == StatusCode::kInvalidRequest;
      Log(is_clients_fault ? LogLevel::kInfo : LogLevel::kError, "engine.request_failed",
          {{"request_id", s->request.request_id}, {"status", status}});
      last.finish = FinishReason::kError;
      last.status = status;
      break;
    }
    if (state.event.ids.empty()) continue;
    state.event.finish = EndAfterToken(*s, &state.event.stop_token_id);
    if (state.event.finish != FinishReason::kNone) {
      last = std::move(state.event);
      break;
    }
    Deliver(s, std::move(state.event));
  }
  Release(s);
  Finish(s, std::move(last));
}

FinishReason Engine::EarlyEnd(const Sequence& s, int64_t now_us) const {
  if (cancelled_.contains(s.request.request_id)) return FinishReason::kCancelled;
  return IsPast(s.request.deadline_us, now_us) ? FinishReason::kDeadline : FinishReason::kNone;
}

FinishReason Engine::EndBeforeStep(const Sequence& s) {
  const int64_t now_us = clock_->NowUs();
  const std::lock_guard lock(mutex_);
  stats_.kv_tokens = s.num_computed;
  return EarlyEnd(s, now_us);
}

void Engine::EndWaiting() {
  std::vector<std::pair<std::unique_ptr<Sequence>, FinishReason>> ended;
  const int64_t now_us = clock_->NowUs();
  {
    const std::lock_guard lock(mutex_);
    for (auto it = waiting_.begin(); it != waiting_.end();) {
      FinishReason reason = EarlyEnd(**it, now_us);
      if (reason == FinishReason::kNone && IsPast((*it)->request.queue_deadline_us, now_us)) {
        reason = FinishReason::kQueueTimeout;
      }
      if (reason == FinishReason::kNone) {
        ++it;
        continue;
      }
      ended.emplace_back(std::move(*it), reason);
      it = waiting_.erase(it);
      --stats_.waiting;
    }
  }
  for (auto& [sequence, reason] : ended) {
    TokenEvent event;
    event.finish = reason;
    event.status = EarlyEndStatus(reason);
    sequence->counters.queue_us = now_us - sequence->submitted_us;
    Finish(sequence.get(), std::move(event));
  }
}

void Engine::Finish(Sequence* s, TokenEvent last) {
  {
    const std::lock_guard lock(mutex_);
    live_.erase(s->request.request_id);
    cancelled_.erase(s->request.request_id);
  }
  Deliver(s, std::move(last));
  // What the sink holds must be gone when Drain returns, not when the sequence is destroyed.
  s->sink = nullptr;
  {
    const std::lock_guard lock(mutex_);
    --num_unfinished_;
  }
  drained_.notify_all();
}

FinishReason Engine::EndAfterToken(const Sequence& s, int32_t* stop_token_id) const {
  const SamplingParams& p = s.request.sampling;
  const int32_t id = s.tokens.back();
  const bool is_end = id == model_->config().eos_token_id && !p.ignore_eos;
  const bool is_stop =
      std::find(p.stop_token_ids.begin(), p.stop_token_ids.end(), id) != p.stop_token_ids.end();
  if ((is_end || is_stop) && s.num_generated > p.min_tokens) {
    *stop_token_id = id;
    return FinishReason::kStop;
  }
  const bool context_full = static_cast<int32_t>(s.tokens.size()) >= options_.max_model_len;
  return s.num_generated >= p.max_tokens || context_full ? FinishReason::kLength
                                                         : FinishReason::kNone;
}

void Engine::Deliver(Sequence* s, TokenEvent event) {
  event.counters = s->counters;
  if (event.finish != FinishReason::kNone)
    event.start_index = s->num_generated - static_cast<int32_t>(event.ids.size());
  s->sink(std::move(event));
}

void Engine::Acquire(Sequence* s) {
  const int32_t tail =
      s->request.sampling.prompt_logprobs || options_.decoder_tail == DecoderTail::kFull
          ? s->prompt_len
          : model_->config().decoder_keep_rows();
  s->decoder_origin = std::max(0, s->prompt_len - tail);
  s->cache.pool = pool_;
  s->cache.slot = slot_;
  s->cache.block_table.resize(static_cast<size_t>(num_blocks_));
  std::iota(s->cache.block_table.begin(), s->cache.block_table.end(), 0);
  const std::lock_guard lock(mutex_);
  stats_.blocks_acquired += num_blocks_;
  ++stats_.slots_acquired;
}

void Engine::Release(Sequence* s) {
  s->cache = {};
  const std::lock_guard lock(mutex_);
  stats_.kv_tokens = 0;
  --stats_.running;
  stats_.blocks_released += num_blocks_;
  ++stats_.slots_released;
}

}  // namespace deepinfer
