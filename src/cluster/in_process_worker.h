// A worker in the gateway's own process: calls the engine directly.
// Thread rule: as Worker.
#pragma once

#include <memory>
#include <string>

#include "cluster/worker.h"
#include "engine/engine.h"

namespace deepinfer {

class InProcessWorker final : public Worker {
 public:
  InProcessWorker(std::string model_name, Model* model, std::unique_ptr<Engine> engine,
                  WorkerRole role = WorkerRole::kAll, std::string kv_root = std::string(),
                  std::string weights_hash = std::string());

  WorkerInfo info() const override { return *info_; }
  std::shared_ptr<const WorkerInfo> shared_info() const override { return info_; }
  Status Submit(EngineRequest request, TokenSink sink) override;
  std::optional<StoredPrefix> Probe(std::span<const BlockKey> keys, int32_t prompt_tokens,
                                    std::chrono::microseconds) override {
    return engine_->FindStored(keys, prompt_tokens);
  }
  void Cancel(std::string_view request_id) override;
  LoadReport Load() const override;
  bool healthy() const override { return engine_->healthy(); }
  EngineStatistics Statistics() const override;
  StoreStatistics Store() const override { return engine_->Store(); }
  Status Profile(int32_t num_steps, int64_t deadline_us, ProfileSink done) override;
  void Drain(int64_t deadline_us) override;

 private:
  std::shared_ptr<const WorkerInfo> info_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace deepinfer
