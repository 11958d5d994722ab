// A worker whose events the test sends.
// Thread rule: any thread.
#pragma once

#include <functional>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "cluster/incarnation.h"
#include "cluster/worker.h"

namespace deepinfer {

class ScriptedWorker final : public Worker {
 public:
  explicit ScriptedWorker(WorkerRole role) {
    info_.role = role;
    info_.endpoint = std::string(WorkerRoleName(role));
    info_.vocab_size = 100;
    info_.max_model_len = 1000;
    info_.incarnation = NewIncarnation();
  }

  WorkerInfo info() const override {
    const std::lock_guard lock(mutex_);
    return info_;
  }
  Status Submit(EngineRequest request, TokenSink sink) override {
    return Take("run", std::move(request), std::move(sink));
  }
  Status SubmitDecode(EngineRequest request, TokenSink sink) override {
    return Take("decode", std::move(request), std::move(sink));
  }
  Status SubmitPrefill(EngineRequest request, const std::string& to, TokenSink sink) override {
    return Take("prefill for " + to, std::move(request), std::move(sink));
  }
  std::optional<StoredPrefix> Probe(std::span<const BlockKey> keys, int32_t prompt_tokens,
                                    std::chrono::microseconds limit) override {
    return when_probed ? when_probed(keys, prompt_tokens, limit) : std::nullopt;
  }
  void Cancel(std::string_view id) override {
    const std::lock_guard lock(mutex_);
    cancelled_.emplace_back(id);
  }
  LoadReport Load() const override {
    if (when_asked_for_load) when_asked_for_load();
    const std::lock_guard lock(mutex_);
    return load_;
  }
  bool healthy() const override { return Load().ready; }
  EngineStatistics Statistics() const override { return {}; }
  void Drain(int64_t) override {}

  // Before anybody asks for it.
  void SetLayout(int64_t slot_bytes, std::vector<int64_t> section_bytes, std::string kv_root) {
    info_.kv_slot_bytes = slot_bytes;
    info_.kv_block_bytes = std::accumulate(section_bytes.begin(), section_bytes.end(), int64_t{0});
    info_.kv_section_bytes = std::move(section_bytes);
    info_.kv_root = std::move(kv_root);
  }

  std::function<std::optional<StoredPrefix>(std::span<const BlockKey>, int32_t,
                                            std::chrono::microseconds)>
      when_probed;
  std::function<void()> when_asked_for_load;  // the gateway asks while it places a request

  void SetReady(bool ready) {
    const std::lock_guard lock(mutex_);
    load_.ready = ready;
  }
  void SetStore(std::string kv_root, bool hands_over_by_store) {
    const std::lock_guard lock(mutex_);
    info_.kv_root = std::move(kv_root);
    info_.hands_over_by_store = hands_over_by_store;
  }
  // One of the workers that share a cache of this namespace.
  void SetNamespace(std::string kv_root, const Sha256Digest& space) {
    const std::lock_guard lock(mutex_);
    info_.kv_root = std::move(kv_root);
    info_.kv_namespace = space;
    info_.answers_probes = true;
  }
  void SetEncoderOnly() {
    const std::lock_guard lock(mutex_);
    info_.encoder_only = true;
  }
  void SetRevision(std::string revision) {
    const std::lock_guard lock(mutex_);
    info_.revision = std::move(revision);
  }
  void SetRunning(int32_t running) {
    const std::lock_guard lock(mutex_);
    load_.running = running;
  }
  // How many it can run at once: with credit limited so, it takes no more than a few beyond.
  void SetMaxRunning(int32_t max_running) {
    const std::lock_guard lock(mutex_);
    load_.max_running = max_running;
  }
  void SetCosts(const PredictedCosts& costs) {
    const std::lock_guard lock(mutex_);
    load_.costs = costs;
  }
  void SetEndpoint(std::string endpoint) {
    const std::lock_guard lock(mutex_);
    info_.endpoint = std::move(endpoint);
  }
  size_t num_taken() const {
    const std::lock_guard lock(mutex_);
    return requests_.size();
  }
  EngineRequest request(size_t i) const {
    const std::lock_guard lock(mutex_);
    return requests_.at(i);
  }
  std::vector<std::string> kinds() const {
    const std::lock_guard lock(mutex_);
    return kinds_;
  }
  std::vector<std::string> cancelled() const {
    const std::lock_guard lock(mutex_);
    return cancelled_;
  }
  // What it answers to requests from now on.
  void Refuse(Status status) {
    const std::lock_guard lock(mutex_);
    answer_ = std::move(status);
  }
  // Ids of the requests it took.
  std::vector<std::string> taken() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> ids;
    for (const EngineRequest& request : requests_) ids.push_back(request.request_id);
    return ids;
  }
  // Event of the i-th request it took.
  void Send(size_t i, int32_t start, std::vector<int32_t> ids,
            FinishReason finish = FinishReason::kNone, Status status = OkStatus(),
            std::vector<std::byte> image = {}) {
    Send(i, start, std::move(ids), finish, std::move(status), std::move(image), 0);
  }
  // The end of a prompt whose answer runs elsewhere, after a first token or before.
  void SendImage(size_t i, std::vector<std::byte> image, int32_t positions,
                 std::vector<int32_t> ids = {10}) {
    Send(i, 0, std::move(ids), FinishReason::kHandedOff, OkStatus(), std::move(image), positions);
  }
  // Cancels what has not ended.
  void EndAll() {
    for (size_t i = 0; i < num_taken(); ++i) {
      bool live = false;
      {
        const std::lock_guard lock(mutex_);
        live = !ended_.at(i);
      }
      if (live) Send(i, 0, {}, FinishReason::kCancelled);
    }
  }
  void Lose(size_t i) { Send(i, 0, {}, FinishReason::kError, Unavailable("lost")); }

 private:
  void Send(size_t i, int32_t start, std::vector<int32_t> ids, FinishReason finish, Status status,
            std::vector<std::byte> image, int32_t positions) {
    TokenEvent event;
    event.image = std::move(image);
    event.image_positions = positions;
    event.start_index = start;
    event.ids = std::move(ids);
    event.finish = finish;
    event.status = std::move(status);
    event.counters.prompt_tokens = 3;
    event.counters.generated_tokens = start + static_cast<int64_t>(event.ids.size());
    TokenSink sink;
    {
      const std::lock_guard lock(mutex_);
      sink = sinks_.at(i);
      ended_.at(i) = ended_.at(i) || event.finish != FinishReason::kNone;
    }
    sink(std::move(event));
  }
  Status Take(std::string kind, EngineRequest request, TokenSink sink) {
    const std::lock_guard lock(mutex_);
    if (!answer_.ok()) return answer_;
    kinds_.push_back(std::move(kind));
    requests_.push_back(std::move(request));
    sinks_.push_back(std::move(sink));
    ended_.push_back(false);
    return OkStatus();
  }

  WorkerInfo info_;
  mutable std::mutex mutex_;
  LoadReport load_;
  Status answer_;
  std::vector<std::string> kinds_, cancelled_;
  std::vector<EngineRequest> requests_;
  std::vector<TokenSink> sinks_;
  std::vector<bool> ended_;
};

}  // namespace deepinfer
