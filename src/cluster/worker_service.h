// A worker for gateways in other processes: takes their requests from sessions, sends tokens and
// load reports back (docs/cluster.md §3), hands prompts over to other workers and takes theirs
// (§5). Thread rule: any thread; one thread per session serves it, one sends reports.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "cluster/gateway_link.h"
#include "cluster/hand_off_receiver.h"
#include "cluster/hand_off_sender.h"
#include "cluster/kept_runs.h"
#include "cluster/run_fence.h"
#include "cluster/self_probe.h"
#include "cluster/session.h"
#include "cluster/worker.h"

namespace deepinfer {

struct WorkerServiceOptions {
  // Between two reports at most, and between two looks whether the load has changed enough for one.
  int64_t report_interval_us = 100'000;
  int64_t look_interval_us = 20'000;
  HandOffSenderOptions sender;
  std::string data_host = "127.0.0.1";  // where states of other hosts are taken
  LandingOptions landing;
  std::string revision;  // of the deployment (docs/cluster.md §5)
  KeptRunsOptions kept;
  SelfProbeOptions self_probe;
  // Of prompts whose answers run elsewhere; one that holds the encoder only offers kEncoder or
  // kTail.
  HandOffProfile profile = HandOffProfile::kFull;
};

class WorkerService {
 public:
  // worker and clock are borrowed. info().role says what gateways may ask for.
  WorkerService(const WorkerServiceOptions& options, Worker* worker, const Clock* clock);
  // Every session must have ended; waits for the last events of their runs.
  ~WorkerService();

  // Serves one session until it is closed; then its requests are cancelled, those with a work id
  // only when no other gateway asks for them in time.
  void Serve(Session* session);

  // Refuses new work from now on. Requests that run may end until the deadline; the gateways of
  // the others learn of the loss when their sessions close, and continue them elsewhere.
  void Drain(int64_t deadline_us);
  bool draining() const;
  // Sessions with workers that hand over: of all time, and open now.
  uint64_t num_worker_sessions() const { return num_worker_sessions_; }
  uint64_t num_open_worker_sessions() const { return num_open_worker_sessions_; }
  // An operator asked for it over a session; called once, on the thread of the session.
  void OnDrainAsked(std::function<void(int64_t within_us)> callback);

 private:
  using Link = RunOutput;
  struct Run {
    std::string name;  // RunName; its id in the engine
    std::shared_ptr<Link> link;
    bool cancelled = false;
  };

  // One session with a gateway or an operator, or with a worker that hands over, after its Hello.
  void ServeGateway(const std::shared_ptr<GatewayLink>& link, Session* session,
                    const wire::Message& greeting);
  void ServeWorker(const std::shared_ptr<GatewayLink>& link, Session* session,
                   const wire::Message& greeting);
  void OnSubmit(const std::shared_ptr<GatewayLink>& link, const wire::Message& message);
  void OnQuery(const std::shared_ptr<GatewayLink>& link, const wire::Message& message);
  void OnProbe(const std::shared_ptr<GatewayLink>& link, const wire::Message& message);
  void OnCancel(const std::string& request_id, uint32_t attempt);
  void OnDrain(int64_t within_us);
  void OnSetRole(const std::string& name);
  // Starts the run of a checked request whose attempt has entered; with a transfer only its prompt.
  // The client's side is told of a refusal.
  using TransferPtr = std::shared_ptr<HandOffTransfer>;
  Status StartRun(const std::shared_ptr<Link>& link, EngineRequest request, const std::string& id,
                  const TransferPtr& transfer);
  // The last event of a prompt that is not handed over.
  static void EndPrompt(HandOffTransfer* transfer, TokenEvent* event);
  // Waits for the state of a prompt that runs elsewhere.
  void AwaitState(const std::shared_ptr<Link>& link, EngineRequest request);
  // The prompt of a run is done: its first token goes to the client, its state to the worker.
  void HandOver(const std::shared_ptr<Link>& link, const std::string& id, uint32_t attempt,
                const TransferPtr& transfer, TokenEvent event);
  void EndRun(const std::string& request_id, const std::string& name);
  // The last word about a run that ended without its engine.
  void EndWith(const std::shared_ptr<Link>& link, const std::string& id, uint32_t attempt,
               const Status& status, int32_t num_generated = 0);
  // Wherever it is: in the engine, waiting for its state, or being handed over.
  void CancelRun(const std::string& name);
  void CancelRuns(const std::vector<std::string>& names);
  // The gateway is gone: its runs end, or wait for another one.
  void LeaveRunsOf(const GatewayLink& link);
  void Report();
  void SendReport(uint64_t seq, const LoadReport& load, bool with_statistics,
                  const std::vector<std::shared_ptr<GatewayLink>>& links, int32_t num_gateways);

  const WorkerServiceOptions options_;
  Worker* const worker_;
  const Clock* const clock_;
  const WorkerInfo own_;
  std::atomic<WorkerRole> role_;  // an operator may change it
  KeptRuns kept_;
  std::atomic<uint64_t> num_worker_sessions_{0};
  std::atomic<uint64_t> num_open_worker_sessions_{0};

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  RunFence fence_;
  std::unordered_map<std::string, Run> runs_;  // by request
  std::vector<std::shared_ptr<GatewayLink>> links_;
  int32_t num_operators_ = 0;  // of these links: they send no requests
  std::function<void(int64_t)> on_drain_asked_;
  bool draining_ = false;
  bool report_now_ = false;
  bool stop_ = false;
  HandOffReceiver receiver_;
  HandOffSender sender_;
  SelfProbe self_probe_;
  std::thread reporter_;
};

}  // namespace deepinfer
