#include "cli/generation.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>

#include "cli/load_display.h"

namespace deepinfer {

namespace {
// How often a waiting caller looks at its interrupt flag.
constexpr std::chrono::milliseconds kInterruptPoll{50};
}  // namespace

Result<std::unique_ptr<LocalEngine>> LocalEngine::Open(const std::filesystem::path& dir,
                                                       const BundleOptions& bundle,
                                                       const EngineOptions& engine,
                                                       const KvFlags* kv) {
  std::unique_ptr<LocalEngine> local(new LocalEngine);
  LoadProgress progress;
  {
    const LoadDisplay display(&progress, false);
    DI_ASSIGN_OR_RETURN(local->bundle_, ModelBundle::Load(dir, bundle, &progress));
  }
  if (kv != nullptr) {
    DI_ASSIGN_OR_RETURN(local->cache_, kv->Open(*local->bundle_.model, dir, &local->clock_));
  }
  KvStore* store = local->cache_ != nullptr ? local->cache_->store.get() : nullptr;
  EngineOptions options = engine;
  options.sampling_pool = local->bundle_.pool.get();
  DI_ASSIGN_OR_RETURN(local->engine_,
                      Engine::Create(local->bundle_.model.get(), options, &local->clock_,
                                     local->bundle_.grammars.get(), store));
  return local;
}

KvScope LocalEngine::cache_scope() const {
  return cache_ != nullptr ? KvScope::Tenant(cache_->secret, "", "") : KvScope{};
}

Result<TokenEvent> LocalEngine::Run(EngineRequest request,
                                    const std::function<void(const TokenEvent&)>& on_event,
                                    const std::atomic<bool>* interrupted) {
  std::mutex mutex;
  std::condition_variable ready;
  std::deque<TokenEvent> events;
  const std::string id = request.request_id;
  DI_RETURN_IF_ERROR(engine_->Submit(std::move(request), [&](TokenEvent event) {
    const std::lock_guard lock(mutex);
    events.push_back(std::move(event));
    ready.notify_one();
  }));
  while (true) {
    TokenEvent event;
    {
      std::unique_lock lock(mutex);
      while (events.empty()) {
        ready.wait_for(lock, kInterruptPoll);
        if (interrupted != nullptr && interrupted->load()) engine_->Cancel(id);
      }
      event = std::move(events.front());
      events.pop_front();
    }
    on_event(event);
    if (event.finish != FinishReason::kNone) return event;
  }
}

}  // namespace deepinfer
