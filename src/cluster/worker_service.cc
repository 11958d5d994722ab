#include "cluster/worker_service.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include <cluster.pb.h>
#include "base/log.h"
#include "cluster/handshake.h"
#include "cluster/incarnation.h"
#include "cluster/wire_codec.h"

namespace deepinfer {

namespace {

// Reports between two that carry the whole statistics.
constexpr uint64_t kReportsPerStatistics = 10;
// For the steps of runs that were cancelled.
constexpr std::chrono::seconds kLastWord{15};

WorkerInfo InfoOf(const Worker& worker, const WorkerServiceOptions& options) {
  WorkerInfo info = worker.info();
  info.revision = options.revision;
  info.hands_over_by_store = options.profile == HandOffProfile::kStore;
  return info;
}

// Data connections are neither encrypted nor authenticated: secure pairs of two hosts send states
// over their session.
HandOffTransport ReceiverTransport(const WorkerServiceOptions& options) {
  return options.sender.security == nullptr ? options.sender.transport
                                            : HandOffTransport::kSharedMemory;
}

HandOffSenderOptions SenderOptions(const WorkerServiceOptions& options, const Worker* worker) {
  HandOffSenderOptions sender = options.sender;
  sender.gets_on = [worker] { return worker->healthy(); };
  return sender;
}

// Enough for gateways to want to know at once: a place is free, or a twentieth of the queue is
// done.
bool HasChanged(const LoadReport& before, const LoadReport& now) {
  constexpr double kShare = 0.05;
  const double queued = std::abs(now.costs.queued_us - before.costs.queued_us);
  return now.running != before.running || now.waiting != before.waiting ||
         now.ready != before.ready || now.draining != before.draining ||
         queued > kShare * std::max(now.costs.queued_us, before.costs.queued_us);
}

KeptRuns::Part PartOf(const wire::Submit& submit) {
  switch (submit.mode()) {
    case wire::Submit::PREFILL:
      return KeptRuns::Part::kPrompt;
    case wire::Submit::DECODE:
      return KeptRuns::Part::kAnswer;
    default:
      return KeptRuns::Part::kWhole;
  }
}

}  // namespace

WorkerService::WorkerService(const WorkerServiceOptions& options, Worker* worker,
                             const Clock* clock)
    : options_(options),
      worker_(worker),
      clock_(clock),
      own_(InfoOf(*worker, options)),
      role_(own_.role),
      kept_(options.kept),
      receiver_(ReceiverTransport(options), options.landing, options.data_host, clock,
                options.sender.ucx),
      sender_(SenderOptions(options, worker), own_, clock),
      self_probe_(options.self_probe, worker, clock),
      reporter_([this] { Report(); }) {}

WorkerService::~WorkerService() {
  CancelRuns(kept_.ExpireAll());
  {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kLastWord, [this] { return runs_.empty(); })) {
      Log(LogLevel::kError, "worker.runs_left", {{"runs", static_cast<int64_t>(runs_.size())}});
    }
    stop_ = true;
  }
  changed_.notify_all();
  reporter_.join();
}

void WorkerService::Serve(Session* session) {
  wire::Message message;
  if (!session->Receive(&message) || !message.has_hello()) return;
  wire::Message answer = MakeHello(own_.incarnation, std::string(WorkerRoleName(role_)), own_);
  answer.set_target(message.sender());
  const std::string refused = WhyRefused(message.hello(), own_);
  answer.mutable_hello()->set_refused(refused);
  session->Send(std::move(answer));
  if (!refused.empty()) {
    Log(LogLevel::kWarning, "session.refused",
        {{"role", message.hello().role()}, {"reason", refused}});
    return;
  }
  const auto link = std::make_shared<GatewayLink>(session, own_.incarnation, message.sender());
  if (ParseWorkerRole(message.hello().role())) {
    ServeWorker(link, session, message);
  } else {
    ServeGateway(link, session, message);
  }
}

void WorkerService::ServeGateway(const std::shared_ptr<GatewayLink>& link, Session* session,
                                 const wire::Message& greeting) {
  const uint64_t peer = greeting.sender();
  const int32_t is_operator = greeting.hello().role() == kOperatorRole ? 1 : 0;
  {
    const std::lock_guard lock(mutex_);
    links_.push_back(link);
    num_operators_ += is_operator;
    report_now_ = true;  // it knows nothing yet
  }
  wire::Message message;
  while (session->Receive(&message)) {
    // A stranger, or one that means the process that was here before.
    if (message.sender() != peer || message.target() != own_.incarnation) continue;
    if (message.has_submit()) {
      OnSubmit(link, message);
    } else if (message.has_query()) {
      OnQuery(link, message);
    } else if (message.has_probe()) {
      OnProbe(link, message);
    } else if (message.has_cancel()) {
      OnCancel(message.cancel().request_id(), message.cancel().attempt());
    } else if (message.has_tokens_ack()) {
      link->OnAck(message.tokens_ack().request_id(), message.tokens_ack().num_events());
    } else if (message.has_drain()) {
      OnDrain(message.drain().within_us());
    } else if (message.has_set_role()) {
      OnSetRole(message.set_role().role());
    }
  }
  {
    const std::lock_guard lock(mutex_);
    std::erase(links_, link);
    num_operators_ -= is_operator;
  }
  LeaveRunsOf(*link);
  link->Detach();
}

void WorkerService::ServeWorker(const std::shared_ptr<GatewayLink>& link, Session* session,
                                const wire::Message& greeting) {
  const uint64_t number = num_worker_sessions_.fetch_add(1, std::memory_order_relaxed) + 1;
  ++num_open_worker_sessions_;
  HandOffReceiver::Peer sender;
  sender.session = number;
  sender.same_host = greeting.hello().host_id() == HostId();
  sender.shares_store = !own_.kv_root.empty() && greeting.hello().kv_root() == own_.kv_root;
  sender.reply = [link](wire::Message answer) { link->Send(std::move(answer)); };
  wire::Message message;
  while (session->Receive(&message)) {
    if (message.sender() != greeting.sender() || message.target() != own_.incarnation) continue;
    if (message.has_reserve()) {
      receiver_.OnReserve(message.reserve(), sender);
    } else if (message.has_renew()) {
      receiver_.OnRenew(message.renew(), sender);
    } else if (message.has_extent()) {
      receiver_.OnExtent(message.extent(), sender);
    } else if (message.has_commit()) {
      receiver_.OnCommit(message.commit(), sender);
    } else if (message.has_release()) {
      receiver_.OnRelease(message.release(), sender);
    }
  }
  receiver_.OnPeerLost(number);
  link->Detach();
  --num_open_worker_sessions_;
}

void WorkerService::OnDrain(int64_t within_us) {
  std::function<void(int64_t)> callback;
  {
    const std::lock_guard lock(mutex_);
    std::swap(callback, on_drain_asked_);
  }
  if (callback) callback(within_us);
}

void WorkerService::OnSetRole(const std::string& name) {
  const std::optional<WorkerRole> role = ParseWorkerRole(name);
  if (!role) return;
  if (own_.encoder_only && *role != WorkerRole::kPrefill) {
    Log(LogLevel::kWarning, "worker.role_refused",
        {{"role", name}, {"reason", "it holds the layers below the decoder only"}});
    return;
  }
  // What runs goes on: a role only says what gateways give it from now on.
  role_ = *role;
  Log(LogLevel::kInfo, "worker.role", {{"role", name}});
}

void WorkerService::OnQuery(const std::shared_ptr<GatewayLink>& link,
                            const wire::Message& message) {
  const wire::Query& query = message.query();
  wire::Message answer;
  wire::State* state = answer.mutable_state();
  state->set_request_id(query.request_id());
  state->set_attempt(query.attempt());
  // Its events go first: one that waits for the answer to a miss must know that none will come.
  state->set_found(kept_.Adopt(query.work_id(), query.request_id(), query.attempt(), link));
  link->Send(std::move(answer));
}

void WorkerService::OnProbe(const std::shared_ptr<GatewayLink>& link,
                            const wire::Message& message) {
  const wire::Probe& probe = message.probe();
  const std::string& bytes = probe.keys();
  std::vector<BlockKey> keys(bytes.size() / sizeof(BlockKey));
  for (size_t i = 0; i < keys.size(); ++i) {
    std::memcpy(keys[i].bytes.data(), bytes.data() + i * sizeof(BlockKey), sizeof(BlockKey));
  }
  wire::Message answer;
  answer.mutable_probe_result()->set_number(probe.number());
  const auto stored =
      worker_->Probe(keys, std::max(0, probe.prompt_tokens()), std::chrono::microseconds(0));
  EncodeStored(stored.value_or(StoredPrefix()), answer.mutable_probe_result()->mutable_stored());
  link->Send(std::move(answer));
}

void WorkerService::OnSubmit(const std::shared_ptr<GatewayLink>& link,
                             const wire::Message& message) {
  const wire::Submit& submit = message.submit();
  const wire::Request& in = submit.request();
  const int64_t now_us = clock_->NowUs();
  link->NoteDispatch(submit.dispatch_seq());
  std::string older;
  bool is_fresh = false, was_cancelled = false;
  {
    const std::lock_guard lock(mutex_);
    is_fresh = fence_.Enter(in.request_id(), in.attempt(), now_us);
    if (!is_fresh) was_cancelled = fence_.TakeCancelled(in.request_id(), in.attempt());
    const auto it = runs_.find(in.request_id());
    if (it != runs_.end()) older = it->second.name;
  }
  const auto refuse = [&](const Status& status) {
    EndWith(link, in.request_id(), in.attempt(), status);
  };
  // Somebody still waits for its end.
  if (was_cancelled) return refuse(Cancelled("the request was cancelled"));
  // Whoever sent a stale attempt has moved on.
  if (!is_fresh) return;
  if (!older.empty()) CancelRun(older);
  if (draining()) return refuse(Unavailable("the worker drains"));
  Result<EngineRequest> request = DecodeRequest(in, now_us);
  if (!request.ok()) return refuse(request.status());
  const bool only_prompt = submit.mode() == wire::Submit::PREFILL;
  if (own_.encoder_only && !only_prompt) {
    return refuse(Unavailable("the worker holds the layers below the decoder only"));
  }
  std::shared_ptr<Link> output = link;
  if (!request->work_id.empty()) {
    std::string replaced;
    output = kept_.Keep(*request, RunName(in.request_id(), in.attempt()), PartOf(submit), link,
                        &replaced);
    if (!replaced.empty()) CancelRuns({replaced});
  }
  if (submit.mode() == wire::Submit::DECODE) return AwaitState(output, *std::move(request));
  TransferPtr transfer;
  if (only_prompt) {
    // What is kept of it in part cannot be read whole from the store.
    const CacheRetention& retention = request->cache_retention;
    const bool persists = retention.persist && retention.kept_tokens == kKeepAll;
    transfer = sender_.Open(
        {in.request_id(), in.attempt(), submit.decode_endpoint(), options_.profile, persists});
    transfer->WhenHopeless([worker = worker_, run = transfer->run()] { worker->Cancel(run); });
  }
  (void)StartRun(output, *std::move(request), in.request_id(), transfer);
}

void WorkerService::EndPrompt(HandOffTransfer* transfer, TokenEvent* event) {
  transfer->Abandon();
  const Status failure = transfer->failure();
  if (failure.ok() || event->finish != FinishReason::kCancelled) return;
  // It was cancelled because its state can go nowhere, so the request may run elsewhere.
  event->finish = FinishReason::kError;
  event->status = failure;
}

Status WorkerService::StartRun(const std::shared_ptr<Link>& link, EngineRequest request,
                               const std::string& id, const TransferPtr& transfer) {
  const uint32_t attempt = request.attempt;
  // Attempts of one request may overlap for a step, ids in the engine may not.
  const std::string name = RunName(id, attempt);
  request.request_id = name;
  if (transfer != nullptr) {
    request.hand_off = transfer->target().profile;
    if (request.hand_off != HandOffProfile::kStore) request.state_sink = transfer;
  }
  const auto had = static_cast<int32_t>(request.resume ? request.resume->ids.size() : 0);
  {
    const std::lock_guard lock(mutex_);
    Run& run = runs_[id];
    // A run that waited for its state keeps what was said about it meanwhile.
    if (run.name != name) run = {name, link};
    const auto leader = runs_.find(request.branch_of);
    request.branch_of = leader == runs_.end() ? "" : leader->second.name;
  }
  const Status status = worker_->Submit(
      std::move(request), [this, link, id, name, attempt, transfer](TokenEvent event) {
        if (event.finish == FinishReason::kHandedOff) {
          HandOver(link, id, attempt, transfer, std::move(event));
          return;
        }
        const bool last = event.finish != FinishReason::kNone;
        if (last && transfer != nullptr) EndPrompt(transfer.get(), &event);
        link->SendEvent(id, attempt, std::move(event));
        if (last) EndRun(id, name);
      });
  if (!status.ok()) {
    if (transfer != nullptr) transfer->Abandon();
    // What the client has already begun to read may go on elsewhere.
    const bool full = had > 0 && status.code() == StatusCode::kResourceExhausted;
    EndWith(link, id, attempt, full ? Unavailable(status.message()) : status, had);
    return status;
  }
  bool cancelled = false;
  {
    const std::lock_guard lock(mutex_);
    const auto it = runs_.find(id);
    cancelled = it != runs_.end() && it->second.name == name && it->second.cancelled;
  }
  // It may have come before the engine knew of the run.
  if (cancelled) worker_->Cancel(name);
  return OkStatus();
}

void WorkerService::AwaitState(const std::shared_ptr<Link>& link, EngineRequest request) {
  const std::string id = request.request_id;
  const uint32_t attempt = request.attempt;
  {
    const std::lock_guard lock(mutex_);
    runs_[id] = {RunName(id, attempt), link};
  }
  receiver_.Expect(
      RunName(id, attempt), std::move(request),
      [this, link, id, attempt](EngineRequest with_state, TokenEvent first) {
        if (!first.ids.empty()) link->SendEvent(id, attempt, std::move(first));
        return StartRun(link, std::move(with_state), id, nullptr);
      },
      [this, link, id, attempt](const Status& why) { EndWith(link, id, attempt, why); });
}

void WorkerService::HandOver(const std::shared_ptr<Link>& link, const std::string& id,
                             uint32_t attempt, const TransferPtr& transfer, TokenEvent event) {
  TokenEvent last;
  last.start_index = event.start_index + static_cast<int32_t>(event.ids.size());
  last.finish = FinishReason::kHandedOff;
  last.counters = event.counters;
  last.origin = event.origin;
  event.finish = FinishReason::kNone;
  std::vector<std::byte> image = std::move(event.image);
  event.image.clear();
  TokenEvent state = event;
  state.credit = nullptr;
  state.image = std::move(image);
  if (!event.ids.empty()) link->SendEvent(id, attempt, std::move(event));
  bool cancelled = true;
  {
    const std::lock_guard lock(mutex_);
    const auto it = runs_.find(id);
    const bool runs = it != runs_.end() && it->second.name == RunName(id, attempt);
    cancelled = !runs || it->second.cancelled;
  }
  if (cancelled) transfer->Stop(Cancelled("the request was cancelled"));
  transfer->Complete(std::move(state), [this, link, id, attempt, last](const Status& status) {
    if (!status.ok()) return EndWith(link, id, attempt, status, last.start_index);
    link->SendEvent(id, attempt, last);
    EndRun(id, RunName(id, attempt));
  });
}

void WorkerService::EndRun(const std::string& request_id, const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto it = runs_.find(request_id);
  if (it != runs_.end() && it->second.name == name) runs_.erase(it);
  // Under the lock: whoever waits may destroy the service at once.
  changed_.notify_all();
}

void WorkerService::EndWith(const std::shared_ptr<Link>& link, const std::string& id,
                            uint32_t attempt, const Status& status, int32_t num_generated) {
  TokenEvent last;
  last.start_index = num_generated;
  last.finish = FinishReason::kError;
  if (status.code() == StatusCode::kCancelled) {
    last.finish = FinishReason::kCancelled;
  } else {
    last.status = status;
  }
  link->SendEvent(id, attempt, std::move(last));
  EndRun(id, RunName(id, attempt));
}

void WorkerService::OnCancel(const std::string& request_id, uint32_t attempt) {
  std::string name;
  const std::string submitted_as = kept_.SubmittedAs(request_id);
  {
    const std::lock_guard lock(mutex_);
    // A submission that arrives late is stale as well.
    fence_.Cancel(request_id, attempt, clock_->NowUs());
    const auto it = runs_.find(submitted_as);
    if (it == runs_.end()) return;
    name = it->second.name;
    it->second.cancelled = true;
  }
  kept_.Forget(name);
  CancelRun(name);
}

void WorkerService::CancelRun(const std::string& name) {
  worker_->Cancel(name);
  sender_.Cancel(name);
  (void)receiver_.GiveUp(name, Cancelled("the request was cancelled"));
}

void WorkerService::CancelRuns(const std::vector<std::string>& names) {
  {
    const std::lock_guard lock(mutex_);
    for (auto& [id, run] : runs_) {
      if (std::find(names.begin(), names.end(), run.name) != names.end()) run.cancelled = true;
    }
  }
  for (const std::string& name : names) CancelRun(name);
}

void WorkerService::LeaveRunsOf(const GatewayLink& link) {
  std::vector<std::string> names = kept_.Orphan(link, clock_->NowUs());
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, run] : runs_) {
      if (run.link.get() == &link) names.push_back(run.name);
    }
    report_now_ = true;
  }
  changed_.notify_all();
  CancelRuns(names);
  if (draining()) CancelRuns(kept_.ExpireAll());
}

bool WorkerService::draining() const {
  const std::lock_guard lock(mutex_);
  return draining_;
}

void WorkerService::OnDrainAsked(std::function<void(int64_t)> callback) {
  const std::lock_guard lock(mutex_);
  on_drain_asked_ = std::move(callback);
}

void WorkerService::Drain(int64_t deadline_us) {
  std::vector<std::shared_ptr<GatewayLink>> links;
  {
    std::unique_lock lock(mutex_);
    draining_ = true;
    lock.unlock();
    // What has no state yet is better off elsewhere.
    receiver_.GiveUpAll(Unavailable("the worker drains"));
    lock.lock();
    const int64_t left_us = std::max<int64_t>(0, deadline_us - clock_->NowUs());
    changed_.wait_for(lock, std::chrono::microseconds(left_us), [this] { return runs_.empty(); });
    links = links_;
  }
  for (const auto& link : links) link->CloseSession();
}

void WorkerService::Report() {
  LoadReport reported;
  auto next = std::chrono::steady_clock::now();
  for (uint64_t seq = 1;;) {
    std::vector<std::shared_ptr<GatewayLink>> links;
    int32_t num_gateways = 0;
    bool at_once = false;
    {
      std::unique_lock lock(mutex_);
      const int64_t wait_us = std::min(options_.look_interval_us, options_.report_interval_us);
      changed_.wait_for(lock, std::chrono::microseconds(wait_us),
                        [this] { return stop_ || report_now_; });
      if (stop_) return;
      at_once = std::exchange(report_now_, false);
      links = links_;
      num_gateways = static_cast<int32_t>(links.size()) - num_operators_;
    }
    receiver_.Sweep();
    sender_.Sweep();
    CancelRuns(kept_.Expire(clock_->NowUs()));
    LoadReport load = worker_->Load();
    self_probe_.Look(load);
    // Gateways learn of it when it fails only.
    load.running = std::max(0, load.running - self_probe_.num_running());
    load.ready = load.ready && self_probe_.passes();
    if (links.empty()) continue;
    const auto now = std::chrono::steady_clock::now();
    if (now < next && !at_once && !HasChanged(reported, load)) continue;
    const bool with_statistics = at_once || seq % kReportsPerStatistics == 1;
    SendReport(seq++, load, with_statistics, links, num_gateways);
    reported = load;
    next = now + std::chrono::microseconds(options_.report_interval_us);
  }
}

void WorkerService::SendReport(uint64_t seq, const LoadReport& load, bool with_statistics,
                               const std::vector<std::shared_ptr<GatewayLink>>& links,
                               int32_t num_gateways) {
  wire::Message message;
  wire::LoadReport* report = message.mutable_load_report();
  report->set_seq(seq);
  const HandOffReceiver::Awaited awaited = receiver_.awaited();
  report->set_running(load.running + awaited.requests);
  report->set_waiting(load.waiting);
  report->set_max_running(load.max_running);
  report->set_kv_tokens(load.kv_tokens + awaited.tokens);
  report->set_kv_capacity_tokens(load.kv_capacity_tokens);
  report->set_queued_prompt_tokens(load.queued_prompt_tokens);
  report->set_draining(load.draining || draining());
  report->set_healthy(load.ready);
  report->set_role(std::string(WorkerRoleName(role_)));
  HandOffCounters hand_offs;
  receiver_.Count(&hand_offs);
  sender_.Count(&hand_offs);
  EncodeHandOffs(hand_offs, report->mutable_hand_offs());
  EncodeCosts(load.costs, report->mutable_costs());
  report->set_orphans(kept_.num_orphans());
  report->set_kept_bytes(kept_.num_bytes());
  report->set_gateways(num_gateways);
  if (with_statistics) {
    EncodeStatistics(worker_->Statistics(), report->mutable_statistics());
  }
  for (const auto& link : links) {
    report->set_last_dispatch_seq(link->last_dispatch_seq());
    link->Send(message);
  }
}

}  // namespace deepinfer
