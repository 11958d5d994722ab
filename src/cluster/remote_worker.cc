#include "cluster/remote_worker.h"

#include <algorithm>

#include <cluster.pb.h>
#include "base/log.h"
#include "cluster/handshake.h"
#include "cluster/wire_codec.h"

namespace deepinfer {

namespace {

// A fraction of the delivery window of an engine, so that acknowledgements cost little and a
// receiver that keeps up is never held back.
constexpr uint32_t kEventsPerAck = 16;
// A worker answers a query at once; its first token must not wait long for one that does not.
constexpr std::chrono::milliseconds kQueryLimit{300};
constexpr int32_t kMostGateways = 1024;

}  // namespace

// Counts events the client's side is done with and tells the worker now and then.
class AckCounter {
 public:
  AckCounter(std::weak_ptr<Session> session, uint64_t own, uint64_t peer, std::string request_id,
             uint32_t attempt)
      : session_(std::move(session)),
        own_(own),
        peer_(peer),
        request_id_(std::move(request_id)),
        attempt_(attempt) {}

  void Done() {
    if (done_.fetch_add(1, std::memory_order_acq_rel) % kEventsPerAck != kEventsPerAck - 1) return;
    const std::shared_ptr<Session> session = session_.lock();
    if (session == nullptr) return;
    wire::Message message;
    message.set_sender(own_);
    message.set_target(peer_);
    message.mutable_tokens_ack()->set_request_id(request_id_);
    message.mutable_tokens_ack()->set_attempt(attempt_);
    message.mutable_tokens_ack()->set_num_events(kEventsPerAck);
    session->Send(std::move(message));
  }

 private:
  const std::weak_ptr<Session> session_;
  const uint64_t own_, peer_;
  const std::string request_id_;
  const uint32_t attempt_;
  std::atomic<uint32_t> done_{0};
};

RemoteWorker::RemoteWorker(std::string endpoint, uint64_t own_incarnation, WorkerInfo own,
                           const RemoteWorkerOptions& options, const Clock* clock)
    : endpoint_(std::move(endpoint)),
      own_incarnation_(own_incarnation),
      own_(std::move(own)),
      options_(options),
      clock_(clock) {
  load_.ready = false;
  WorkerInfo unknown;
  unknown.endpoint = endpoint_;
  info_ = std::make_shared<const WorkerInfo>(std::move(unknown));
  thread_ = std::thread([this] { Loop(); });
}

RemoteWorker::~RemoteWorker() {
  std::shared_ptr<Session> session;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    session = session_;
  }
  changed_.notify_all();
  if (session != nullptr) session->Close();
  thread_.join();
}

std::shared_ptr<const WorkerInfo> RemoteWorker::shared_info() const {
  const std::lock_guard lock(mutex_);
  return info_;
}

Status RemoteWorker::Submit(EngineRequest request, TokenSink sink) {
  return Dispatch(std::move(request), wire::Submit::RUN, "", std::move(sink));
}

Status RemoteWorker::SubmitPrefill(EngineRequest request, const std::string& decode_endpoint,
                                   TokenSink sink) {
  return Dispatch(std::move(request), wire::Submit::PREFILL, decode_endpoint, std::move(sink));
}

Status RemoteWorker::SubmitDecode(EngineRequest request, TokenSink sink) {
  return Dispatch(std::move(request), wire::Submit::DECODE, "", std::move(sink));
}

Status RemoteWorker::Dispatch(EngineRequest request, int mode, const std::string& decode_endpoint,
                              TokenSink sink) {
  wire::Message message;
  wire::Submit* submit = message.mutable_submit();
  EncodeRequest(request, clock_->NowUs(), submit->mutable_request());
  submit->set_mode(static_cast<wire::Submit::Mode>(mode));
  submit->set_decode_endpoint(decode_endpoint);
  const std::lock_guard lock(mutex_);
  if (draining_) return Unavailable("the gateway is draining");
  if (session_ == nullptr) return Unavailable("worker " + endpoint_ + " is not reachable");
  DI_RETURN_IF_ERROR(ValidateRequest(request, info_->vocab_size, info_->max_model_len));
  DI_RETURN_IF_ERROR(AddRun(request, std::move(sink)));
  const bool prefill = mode != wire::Submit::DECODE;
  charges_.push_back({next_dispatch_seq_, PromptOf(request), prefill});
  Apply(charges_.back());
  submit->set_dispatch_seq(next_dispatch_seq_++);
  message.set_sender(own_incarnation_);
  message.set_target(info_->incarnation);
  runs_[request.request_id].untold_bytes = static_cast<int64_t>(message.ByteSizeLong());
  session_->Send(std::move(message));
  return OkStatus();
}

Status RemoteWorker::AddRun(const EngineRequest& request, TokenSink sink) {
  Run& run = runs_[request.request_id];
  if (run.attempt >= request.attempt) return InvalidRequest("the request is already live");
  run.attempt = request.attempt;
  run.sink = std::make_shared<TokenSink>(std::move(sink));
  run.acks = std::make_shared<AckCounter>(session_, own_incarnation_, info_->incarnation,
                                          request.request_id, request.attempt);
  return OkStatus();
}

Status RemoteWorker::Adopt(const EngineRequest& request, TokenSink sink) {
  const std::string& id = request.request_id;
  const Status not_found = NotFound("worker " + endpoint_ + " does not run this work");
  std::shared_ptr<TokenSink> unused;  // ends outside of the lock
  std::unique_lock lock(mutex_);
  if (draining_ || session_ == nullptr || load_.orphans == 0) return not_found;
  DI_RETURN_IF_ERROR(AddRun(request, std::move(sink)));
  asked_[id].reset();
  wire::Message message = Address();
  message.mutable_query()->set_work_id(request.work_id);
  message.mutable_query()->set_request_id(id);
  message.mutable_query()->set_attempt(request.attempt);
  const std::shared_ptr<Session> session = session_;
  session->Send(std::move(message));
  changed_.wait_for(lock, kQueryLimit,
                    [&] { return asked_[id].has_value() || session_ != session; });
  const std::optional<bool> found = asked_[id];
  asked_.erase(id);
  const auto run = runs_.find(id);
  // One that is gone has had its last event.
  const bool is_live = run != runs_.end() && run->second.attempt == request.attempt;
  if (found.value_or(false) || !is_live) return OkStatus();
  unused = std::move(run->second.sink);
  runs_.erase(run);
  if (!found && session_ == session) {
    wire::Message cancel = Address();
    cancel.mutable_cancel()->set_request_id(id);
    cancel.mutable_cancel()->set_attempt(request.attempt);
    session->Send(std::move(cancel));
  }
  return not_found;
}

std::optional<StoredPrefix> RemoteWorker::Probe(std::span<const BlockKey> keys,
                                                int32_t prompt_tokens,
                                                std::chrono::microseconds limit) {
  std::unique_lock lock(mutex_);
  if (session_ == nullptr || !info_->answers_probes) return std::nullopt;
  const uint64_t number = next_probe_++;
  Asked& asked = probes_[number];
  asked.prompt_tokens = prompt_tokens;
  wire::Message message = Address();
  wire::Probe* probe = message.mutable_probe();
  probe->set_number(number);
  probe->set_prompt_tokens(prompt_tokens);
  for (const BlockKey& key : keys) {
    probe->mutable_keys()->append(key.bytes.begin(), key.bytes.end());
  }
  const std::shared_ptr<Session> session = session_;
  session->Send(std::move(message));
  changed_.wait_for(lock, limit, [&] { return asked.answer.has_value() || session_ != session; });
  const std::optional<StoredPrefix> answer = asked.answer;
  probes_.erase(number);
  return answer;
}

wire::Message RemoteWorker::Address() const {
  wire::Message message;
  message.set_sender(own_incarnation_);
  message.set_target(info_->incarnation);
  return message;
}

Status RemoteWorker::AskDrain(int64_t within_us) {
  const std::lock_guard lock(mutex_);
  if (session_ == nullptr) return Unavailable("worker " + endpoint_ + " is not reachable");
  wire::Message message = Address();
  message.mutable_drain()->set_within_us(within_us);
  session_->Send(std::move(message));
  return OkStatus();
}

Status RemoteWorker::AskRole(WorkerRole role) {
  const std::lock_guard lock(mutex_);
  if (session_ == nullptr) return Unavailable("worker " + endpoint_ + " is not reachable");
  wire::Message message = Address();
  message.mutable_set_role()->set_role(std::string(WorkerRoleName(role)));
  session_->Send(std::move(message));
  return OkStatus();
}

void RemoteWorker::Cancel(std::string_view request_id) {
  const std::lock_guard lock(mutex_);
  const auto it = runs_.find(std::string(request_id));
  if (it == runs_.end() || session_ == nullptr) return;
  wire::Message message = Address();
  message.mutable_cancel()->set_request_id(it->first);
  message.mutable_cancel()->set_attempt(it->second.attempt);
  session_->Send(std::move(message));
}

LoadReport RemoteWorker::Load() const {
  const std::lock_guard lock(mutex_);
  LoadReport load = load_;
  load.ready = load.ready && session_ != nullptr;
  return load;
}

void RemoteWorker::Apply(const Charge& charge) {
  // Other gateways that share the worker dispatch as much, unseen.
  const int32_t share = std::max(1, load_.gateways);
  const PromptWork& prompt = charge.prompt;
  load_.running += share;
  load_.kv_tokens += share * prompt.tokens;
  if (!charge.prefill) return;
  load_.queued_prompt_tokens += share * (prompt.tokens - prompt.stored.first_row);
  load_.costs.queued_us += share * load_.costs.PromptUs(prompt);
}

EngineStatistics RemoteWorker::Statistics() const {
  const std::lock_guard lock(mutex_);
  EngineStatistics statistics = statistics_;
  statistics.name = endpoint_;
  return statistics;
}

WorkerQueue RemoteWorker::Queue() const {
  const std::lock_guard lock(mutex_);
  return QueueOf(statistics_);
}

void RemoteWorker::Drain(int64_t deadline_us) {
  std::unique_lock lock(mutex_);
  draining_ = true;
  const auto idle = [this] { return runs_.empty(); };
  const int64_t left_us = std::max<int64_t>(0, deadline_us - clock_->NowUs());
  if (changed_.wait_for(lock, std::chrono::microseconds(left_us), idle)) return;
  std::vector<std::string> ids;
  for (const auto& [id, run] : runs_) ids.push_back(id);
  lock.unlock();
  for (const std::string& id : ids) Cancel(id);
  lock.lock();
  if (changed_.wait_for(lock, std::chrono::microseconds(options_.silence_us), idle)) return;
  const std::shared_ptr<Session> session = session_;
  lock.unlock();
  // It does not answer; the loss of the session ends what is left.
  if (session != nullptr) session->Close();
  lock.lock();
  changed_.wait_for(lock, std::chrono::microseconds(options_.silence_us), idle);
}

void RemoteWorker::Sweep(int64_t now_us) {
  std::shared_ptr<Session> silent;
  {
    const std::lock_guard lock(mutex_);
    // A process that was stopped itself has to read first what came meanwhile.
    const bool was_stopped =
        last_sweep_us_ != 0 && now_us - last_sweep_us_ > options_.silence_us / 2;
    last_sweep_us_ = now_us;
    if (was_stopped) last_report_us_ = now_us;
    if (session_ != nullptr && now_us - last_report_us_ > options_.silence_us) silent = session_;
  }
  if (silent == nullptr) return;
  Log(LogLevel::kWarning, "worker.silent", {{"endpoint", endpoint_}});
  silent->Close();
}

bool RemoteWorker::WaitReady(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, limit, [this] { return session_ != nullptr && load_.ready; });
}

void RemoteWorker::Loop() {
  int64_t backoff_us = options_.least_backoff_us;
  while (true) {
    const std::shared_ptr<Session> session = Connect();
    if (session != nullptr) {
      backoff_us = options_.least_backoff_us;
      Listen(session.get());
      {
        const std::lock_guard lock(mutex_);
        session_ = nullptr;
        load_ = {};
        load_.ready = false;
        healthy_.store(false, std::memory_order_release);
        charges_.clear();
        if (!stop_) Log(LogLevel::kWarning, "worker.lost", {{"endpoint", endpoint_}});
      }
      FailRuns(Unavailable("worker " + endpoint_ + " was lost"));
    }
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, std::chrono::microseconds(backoff_us), [this] { return stop_; })) {
      return;
    }
    backoff_us = std::min(backoff_us * 2, options_.most_backoff_us);
  }
}

std::shared_ptr<Session> RemoteWorker::Connect() {
  Result<std::unique_ptr<Session>> dialled =
      DialSession(endpoint_, std::chrono::milliseconds(options_.dial_us / 1000), options_.security);
  if (!dialled.ok()) return nullptr;
  const std::shared_ptr<Session> session = *std::move(dialled);
  session->Send(
      MakeHello(own_incarnation_, options_.is_operator ? kOperatorRole : kGatewayRole, own_));
  {
    // From here on silence is noticed.
    const std::lock_guard lock(mutex_);
    if (stop_) return nullptr;
    session_ = session;
    load_.ready = false;
    last_report_us_ = clock_->NowUs();
  }
  wire::Message answer;
  const bool answered = session->Receive(&answer) && answer.has_hello();
  const std::lock_guard lock(mutex_);
  if (!answered || !answer.hello().refused().empty()) {
    session_ = nullptr;
    if (answered) {
      Log(LogLevel::kError, "worker.refused",
          {{"endpoint", endpoint_}, {"reason", answer.hello().refused()}});
    }
    return nullptr;
  }
  if (answer.sender() != info_->incarnation) statistics_ = {};
  WorkerInfo told = InfoOfHello(answer);
  told.endpoint = endpoint_;
  info_ = std::make_shared<const WorkerInfo>(std::move(told));
  // They went on elsewhere. The worker may still keep them for another gateway.
  for (const auto& [id, attempt] : std::exchange(left_, {})) {
    if (left_at_ != info_->incarnation) break;
    wire::Message message = Address();
    message.mutable_cancel()->set_request_id(id);
    message.mutable_cancel()->set_attempt(attempt);
    session->Send(std::move(message));
  }
  return session;
}

void RemoteWorker::Listen(Session* session) {
  wire::Message message;
  while (session->Receive(&message)) {
    if (message.target() != own_incarnation_) continue;
    if (message.has_tokens()) {
      OnTokens(&message);
    } else if (message.has_load_report()) {
      OnReport(message);
    } else if (message.has_state()) {
      OnState(message);
    } else if (message.has_probe_result()) {
      OnProbeResult(message);
    }
  }
}

void RemoteWorker::OnTokens(wire::Message* message) {
  for (const wire::TokenEvent& in : message->tokens().events()) {
    Result<TokenEvent> event = DecodeEvent(in);
    std::shared_ptr<TokenSink> sink;
    bool last = false;
    {
      const std::lock_guard lock(mutex_);
      const auto it = runs_.find(in.request_id());
      if (it == runs_.end() || it->second.attempt != in.attempt()) continue;
      if (!event.ok()) {
        TokenEvent broken;
        broken.finish = FinishReason::kError;
        broken.status = Unavailable("the worker sent nonsense: " + event.status().message());
        event = std::move(broken);
      }
      last = event->finish != FinishReason::kNone;
      event->wire_bytes =
          static_cast<int64_t>(in.ByteSizeLong()) + std::exchange(it->second.untold_bytes, 0);
      event->credit =
          std::shared_ptr<void>(nullptr, [acks = it->second.acks](void*) { acks->Done(); });
      sink = it->second.sink;
      if (last) runs_.erase(it);
    }
    (*sink)(*std::move(event));
    if (!last) continue;
    sink = nullptr;
    changed_.notify_all();
  }
}

void RemoteWorker::OnReport(const wire::Message& message) {
  const wire::LoadReport& report = message.load_report();
  {
    const std::lock_guard lock(mutex_);
    last_report_us_ = clock_->NowUs();
    load_.running = report.running();
    load_.waiting = report.waiting();
    load_.max_running = report.max_running();
    load_.kv_tokens = report.kv_tokens();
    load_.kv_capacity_tokens = report.kv_capacity_tokens();
    load_.queued_prompt_tokens = report.queued_prompt_tokens();
    load_.draining = report.draining();
    load_.ready = report.healthy();
    if (const auto role = ParseWorkerRole(report.role()); role && *role != info_->role) {
      WorkerInfo changed = *info_;
      changed.role = *role;
      info_ = std::make_shared<const WorkerInfo>(std::move(changed));
    }
    load_.hand_offs = DecodeHandOffs(report.hand_offs());
    load_.costs = DecodeCosts(report.costs());
    load_.orphans = report.orphans();
    load_.gateways = std::clamp(report.gateways(), 1, kMostGateways);
    healthy_.store(report.healthy(), std::memory_order_release);
    load_.kept_bytes = report.kept_bytes();
    if (report.has_statistics()) {
      statistics_ = DecodeStatistics(report.statistics());
      // Without one the counters of this process are unknown, not 0.
      statistics_.incarnation = info_->incarnation;
    }
    std::erase_if(charges_, [&](const Charge& c) { return c.seq <= report.last_dispatch_seq(); });
    for (const Charge& charge : charges_) Apply(charge);
  }
  changed_.notify_all();
}

void RemoteWorker::OnState(const wire::Message& message) {
  {
    const std::lock_guard lock(mutex_);
    const auto it = asked_.find(message.state().request_id());
    if (it != asked_.end()) it->second = message.state().found();
  }
  changed_.notify_all();
}

void RemoteWorker::OnProbeResult(const wire::Message& message) {
  const wire::ProbeResult& result = message.probe_result();
  {
    const std::lock_guard lock(mutex_);
    // Whoever asked may have gone on.
    const auto it = probes_.find(result.number());
    if (it == probes_.end()) return;
    it->second.answer = DecodeStored(result.stored(), it->second.prompt_tokens);
  }
  changed_.notify_all();
}

void RemoteWorker::FailRuns(const Status& status) {
  std::unordered_map<std::string, Run> lost;
  {
    const std::lock_guard lock(mutex_);
    lost.swap(runs_);
    for (const auto& [id, run] : lost) left_.emplace_back(id, run.attempt);
    left_at_ = info_->incarnation;
  }
  for (auto& [id, run] : lost) {
    TokenEvent event;
    event.finish = FinishReason::kError;
    event.status = status;
    (*run.sink)(std::move(event));
  }
  lost.clear();
  changed_.notify_all();
}

}  // namespace deepinfer
