#include "cluster/worker_service.h"

#include <algorithm>
#include <deque>

#include <cluster.pb.h>
#include "base/log.h"
#include "cluster/handshake.h"
#include "cluster/wire_codec.h"

namespace deepinfer {

namespace {

// Reports between two that carry the whole statistics.
constexpr uint64_t kReportsPerStatistics = 10;
// For the steps of runs that were cancelled.
constexpr std::chrono::seconds kLastWord{15};

}  // namespace

// One gateway: where its tokens go, and the credits of events it has not read yet.
class WorkerService::Link {
 public:
  Link(Session* session, uint64_t own, uint64_t peer) : session_(session), own_(own), peer_(peer) {}

  void Send(wire::Message message) {
    const std::lock_guard lock(mutex_);
    SendLocked(std::move(message));
  }

  // Keeps the event's credit until the gateway says it is done with it.
  void SendEvent(const std::string& request_id, uint32_t attempt, TokenEvent event) {
    wire::Message message;
    EncodeEvent(request_id, attempt, event, message.mutable_tokens()->add_events());
    const std::lock_guard lock(mutex_);
    if (session_ == nullptr) return;
    if (event.finish != FinishReason::kNone) {
      credits_.erase(request_id);
    } else {
      credits_[request_id].push_back(std::move(event.credit));
    }
    SendLocked(std::move(message));
  }

  void OnAck(const std::string& request_id, uint32_t num_events) {
    std::vector<std::shared_ptr<void>> done;  // die outside of the lock
    const std::lock_guard lock(mutex_);
    const auto it = credits_.find(request_id);
    if (it == credits_.end()) return;
    for (; num_events > 0 && !it->second.empty(); --num_events) {
      done.push_back(std::move(it->second.front()));
      it->second.pop_front();
    }
  }

  void NoteDispatch(uint64_t seq) {
    const std::lock_guard lock(mutex_);
    last_dispatch_seq_ = std::max(last_dispatch_seq_, seq);
  }
  uint64_t last_dispatch_seq() const {
    const std::lock_guard lock(mutex_);
    return last_dispatch_seq_;
  }

  void CloseSession() {
    const std::lock_guard lock(mutex_);
    if (session_ != nullptr) session_->Close();
  }
  // After this nothing reaches the session any more.
  void Detach() {
    std::unordered_map<std::string, std::deque<std::shared_ptr<void>>> credits;
    const std::lock_guard lock(mutex_);
    session_ = nullptr;
    credits.swap(credits_);
  }

 private:
  void SendLocked(wire::Message message) {
    if (session_ == nullptr) return;
    message.set_sender(own_);
    message.set_target(peer_);
    session_->Send(std::move(message));
  }

  mutable std::mutex mutex_;
  Session* session_;
  const uint64_t own_, peer_;
  uint64_t last_dispatch_seq_ = 0;
  std::unordered_map<std::string, std::deque<std::shared_ptr<void>>> credits_;
};

WorkerService::WorkerService(const WorkerServiceOptions& options, Worker* worker,
                             const Clock* clock)
    : options_(options),
      worker_(worker),
      clock_(clock),
      incarnation_(worker->info().incarnation),
      reporter_([this] { Report(); }) {}

WorkerService::~WorkerService() {
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
  wire::Message answer =
      MakeHello(incarnation_, std::string(WorkerRoleName(worker_->info().role)), worker_->info());
  answer.set_target(message.sender());
  const std::string refused = WhyRefused(message.hello(), worker_->info());
  answer.mutable_hello()->set_refused(refused);
  session->Send(std::move(answer));
  if (!refused.empty()) {
    Log(LogLevel::kWarning, "session.refused",
        {{"role", message.hello().role()}, {"reason", refused}});
    return;
  }
  const auto link = std::make_shared<Link>(session, incarnation_, message.sender());
  {
    const std::lock_guard lock(mutex_);
    links_.push_back(link);
  }
  const uint64_t peer = message.sender();
  while (session->Receive(&message)) {
    // A stranger, or one that means the process that was here before.
    if (message.sender() != peer || message.target() != incarnation_) continue;
    if (message.has_submit()) {
      OnSubmit(link, message);
    } else if (message.has_cancel()) {
      OnCancel(message.cancel().request_id(), message.cancel().attempt());
    } else if (message.has_tokens_ack()) {
      link->OnAck(message.tokens_ack().request_id(), message.tokens_ack().num_events());
    } else if (message.has_drain()) {
      std::function<void(int64_t)> callback;
      {
        const std::lock_guard lock(mutex_);
        std::swap(callback, on_drain_asked_);
      }
      if (callback) callback(message.drain().within_us());
    }
  }
  {
    const std::lock_guard lock(mutex_);
    std::erase(links_, link);
  }
  link->Detach();
  CancelRunsOf(*link);
}

void WorkerService::OnSubmit(const std::shared_ptr<Link>& link, const wire::Message& message) {
  const wire::Request& in = message.submit().request();
  const int64_t now_us = clock_->NowUs();
  link->NoteDispatch(message.submit().dispatch_seq());
  const auto refuse = [&](Status status) {
    TokenEvent event;
    event.finish = FinishReason::kError;
    event.status = std::move(status);
    link->SendEvent(in.request_id(), in.attempt(), std::move(event));
  };
  std::string older;
  {
    const std::lock_guard lock(mutex_);
    // Whoever sent a stale attempt has moved on.
    if (!fence_.Enter(in.request_id(), in.attempt(), now_us)) return;
    const auto it = runs_.find(in.request_id());
    if (it != runs_.end()) older = it->second.engine_id;
  }
  if (!older.empty()) worker_->Cancel(older);
  if (draining()) return refuse(Unavailable("the worker drains"));
  Result<EngineRequest> request = DecodeRequest(in, now_us);
  if (!request.ok()) return refuse(request.status());
  StartRun(link, *std::move(request), in.request_id());
}

void WorkerService::StartRun(const std::shared_ptr<Link>& link, EngineRequest request,
                             const std::string& id) {
  const uint32_t attempt = request.attempt;
  // Attempts of one request may overlap for a step, ids in the engine may not.
  const std::string engine_id = id + "/" + std::to_string(attempt);
  request.request_id = engine_id;
  {
    const std::lock_guard lock(mutex_);
    runs_[id] = {engine_id, link};
    const auto leader = runs_.find(request.branch_of);
    request.branch_of = leader == runs_.end() ? "" : leader->second.engine_id;
  }
  const Status status =
      worker_->Submit(std::move(request), [this, link, id, engine_id, attempt](TokenEvent event) {
        const bool last = event.finish != FinishReason::kNone;
        link->SendEvent(id, attempt, std::move(event));
        if (last) EndRun(id, engine_id);
      });
  if (status.ok()) return;
  EndRun(id, engine_id);
  TokenEvent event;
  event.finish = FinishReason::kError;
  event.status = status;
  link->SendEvent(id, attempt, std::move(event));
}

void WorkerService::EndRun(const std::string& request_id, const std::string& engine_id) {
  const std::lock_guard lock(mutex_);
  const auto it = runs_.find(request_id);
  if (it != runs_.end() && it->second.engine_id == engine_id) runs_.erase(it);
  // Under the lock: whoever waits may destroy the service at once.
  changed_.notify_all();
}

void WorkerService::OnCancel(const std::string& request_id, uint32_t attempt) {
  std::string engine_id;
  {
    const std::lock_guard lock(mutex_);
    // A submission that arrives late is stale as well.
    (void)fence_.Enter(request_id, attempt, clock_->NowUs());
    const auto it = runs_.find(request_id);
    if (it != runs_.end()) engine_id = it->second.engine_id;
  }
  if (!engine_id.empty()) worker_->Cancel(engine_id);
}

void WorkerService::CancelRunsOf(const Link& link) {
  std::vector<std::string> orphans;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, run] : runs_) {
      if (run.link.get() == &link) orphans.push_back(run.engine_id);
    }
  }
  for (const std::string& engine_id : orphans) worker_->Cancel(engine_id);
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
  std::vector<std::shared_ptr<Link>> links;
  {
    std::unique_lock lock(mutex_);
    draining_ = true;
    const int64_t left_us = std::max<int64_t>(0, deadline_us - clock_->NowUs());
    changed_.wait_for(lock, std::chrono::microseconds(left_us), [this] { return runs_.empty(); });
    links = links_;
  }
  for (const auto& link : links) link->CloseSession();
}

void WorkerService::Report() {
  for (uint64_t seq = 1;; ++seq) {
    std::vector<std::shared_ptr<Link>> links;
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, std::chrono::microseconds(options_.report_interval_us),
                        [this] { return stop_; });
      if (stop_) return;
      links = links_;
    }
    if (links.empty()) continue;
    const LoadReport load = worker_->Load();
    wire::Message message;
    wire::LoadReport* report = message.mutable_load_report();
    report->set_seq(seq);
    report->set_running(load.running);
    report->set_waiting(load.waiting);
    report->set_kv_tokens(load.kv_tokens);
    report->set_kv_capacity_tokens(load.kv_capacity_tokens);
    report->set_queued_prompt_tokens(load.queued_prompt_tokens);
    report->set_draining(load.draining || draining());
    report->set_healthy(load.ready);
    if (seq % kReportsPerStatistics == 1) {
      EncodeStatistics(worker_->Statistics(), report->mutable_statistics());
    }
    for (const auto& link : links) {
      report->set_last_dispatch_seq(link->last_dispatch_seq());
      link->Send(message);
    }
  }
}

}  // namespace deepinfer
