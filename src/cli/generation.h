// One request on an engine of this process, waited for: what `generate`, `run`, `chat` and `bench`
// share.
// Thread rule: main thread; events arrive on the engine's thread and are handed over here.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "base/clock.h"
#include "cli/kv_flags.h"
#include "engine/engine.h"
#include "engine/model_bundle.h"

namespace deepinfer {

// A loaded model with its engine.
class LocalEngine {
 public:
  // Shows loading progress on stderr when it takes long enough to matter. kv: where cached blocks
  // persist; null: in memory only.
  static Result<std::unique_ptr<LocalEngine>> Open(const std::filesystem::path& dir,
                                                   const BundleOptions& bundle,
                                                   const EngineOptions& engine,
                                                   const KvFlags* kv = nullptr);

  // Submits the request and calls on_event for each event, the last one included. When
  // *interrupted becomes true the request is cancelled. Returns the last event.
  Result<TokenEvent> Run(EngineRequest request,
                         const std::function<void(const TokenEvent&)>& on_event,
                         const std::atomic<bool>* interrupted = nullptr);

  // Scope of requests without a tenant: what a server without keys gives its own.
  KvScope cache_scope() const;
  const ModelBundle& bundle() const { return bundle_; }
  const Tokenizer& tokenizer() const { return *bundle_.tokenizer; }
  Engine& engine() { return *engine_; }

 private:
  LocalEngine() = default;

  SteadyClock clock_;
  ModelBundle bundle_;
  std::unique_ptr<KvCache> cache_;  // null without flags for one
  std::unique_ptr<Engine> engine_;
};

}  // namespace deepinfer
