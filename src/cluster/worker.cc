#include "cluster/worker.h"

namespace deepinfer {

std::string_view WorkerRoleName(WorkerRole role) {
  constexpr std::string_view kNames[] = {"all", "prefill", "decode"};
  return kNames[static_cast<size_t>(role)];
}

std::optional<WorkerRole> ParseWorkerRole(std::string_view name) {
  for (const WorkerRole role : {WorkerRole::kAll, WorkerRole::kPrefill, WorkerRole::kDecode}) {
    if (WorkerRoleName(role) == name) return role;
  }
  return std::nullopt;
}

PromptWork PromptOf(const EngineRequest& request) {
  return {static_cast<int64_t>(request.prompt_ids.size()), request.stored};
}

WorkerQueue QueueOf(const EngineStatistics& s) {
  return {s.incarnation, {s.waiting, s.waiting_prompt_tokens, s.started, s.prefill_rows}};
}

std::shared_ptr<const WorkerInfo> Worker::shared_info() const {
  return std::make_shared<const WorkerInfo>(info());
}

WorkerQueue Worker::Queue() const { return QueueOf(Statistics()); }

Status Worker::SubmitDecode(EngineRequest, TokenSink) {
  return Unsupported("this worker takes no hand-offs");
}

Status Worker::SubmitPrefill(EngineRequest, const std::string&, TokenSink) {
  return Unsupported("this worker hands nothing over");
}

Status Worker::Adopt(const EngineRequest&, TokenSink) {
  return NotFound("this worker keeps no runs of others");
}

std::optional<StoredPrefix> Worker::Probe(std::span<const BlockKey>, int32_t,
                                          std::chrono::microseconds) {
  return std::nullopt;
}

void Worker::Sweep(int64_t) {}

}  // namespace deepinfer
