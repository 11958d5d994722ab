#include "cli/engine_loading.h"

#include <fmt/core.h>

#include "base/log.h"
#include "base/process_stats.h"
#include "base/sha256.h"
#include "cli/io.h"
#include "cli/load_display.h"
#include "cluster/in_process_worker.h"

namespace deepinfer {

namespace {

// What the process holds now that everything is loaded.
void LogMemory(const Model& model, const LoadReport& load) {
  const ResidentMemory resident = ReadResidentMemory();
  const int64_t kv_bytes =
      KvLayout::NumBlocks(load.kv_capacity_tokens) * model.layout().block_bytes;
  Log(LogLevel::kInfo, "model.memory",
      {{"checkpoint_bytes", model.checkpoint().total_bytes()},
       {"kv_cache_bytes", kv_bytes},
       {"resident_anonymous_bytes", resident.anonymous_bytes},
       {"resident_file_bytes", resident.file_bytes}});
}

// A file for everything that step times depend on; "" without a folder.
Result<std::string> StepTimeFile(const std::filesystem::path& dir, const std::string& folder,
                                 const BundleOptions& options, const ModelBundle& bundle) {
  if (folder.empty()) return std::string();
  DI_ASSIGN_OR_RETURN(const std::string config, ReadTextFile(dir / "config.json"));
  const std::string name =
      Sha256Hex(fmt::format("{}\n{}\n{}\n{}", config, bundle.model->numerics_id(),
                            IsaLevelName(options.isa), bundle.pool->num_threads()));
  return (std::filesystem::path(folder) / ("step_time-" + name.substr(0, 16))).string();
}

// Names the persistent cache that others share; "" where nobody does. Whoever has another secret
// keeps its blocks under other keys.
std::string SharedRoot(const KvCache& cache) {
  if (cache.store == nullptr || !cache.store->context().options.shared) return {};
  const Sha256Digest& space = cache.store->context().options.namespace_id;
  std::string text = "deepinfer-kv-root-v1";
  text.append(cache.secret.begin(), cache.secret.end());
  text.append(space.begin(), space.end());
  return Sha256Hex(text);
}

}  // namespace

Result<std::unique_ptr<Worker>> LoadInProcessWorker(const std::filesystem::path& dir,
                                                    const ServeFlags& flags,
                                                    const std::string& model_name, WorkerRole role,
                                                    LoadProgress* progress, EngineParts* parts,
                                                    const Clock* clock) {
  DI_ASSIGN_OR_RETURN(BundleOptions bundle_options, flags.model.Bundle());
  bundle_options.model.max_positions = flags.engine.max_model_len;
  bundle_options.grammars = flags.grammars;
  bundle_options.model.part = flags.part;
  ModelBundle& bundle = parts->bundle;
  {
    const LoadDisplay display(progress, true);
    DI_ASSIGN_OR_RETURN(bundle, ModelBundle::Load(dir, bundle_options, progress));
  }
  progress->Set(LoadPhase::kWarmup, 0, 0);
  Model* const model = bundle.model.get();
  DI_ASSIGN_OR_RETURN(parts->cache, flags.kv.Open(*model, dir, clock));
  EngineOptions options = flags.engine;
  options.sampling_pool = bundle.pool.get();
  if (flags.kv_memory_bytes > 0) {
    options.kv_cache_tokens =
        flags.kv_memory_bytes / model->layout().block_bytes * int64_t{kBlockTokens};
    if (options.kv_cache_tokens == 0) return InvalidRequest("--kv-memory holds not even one block");
  }
  // Drafts are the decoder's.
  if (flags.part == ModelPart::kEncoder) options.speculation.enabled = false;
  DI_ASSIGN_OR_RETURN(options.step_time_file,
                      StepTimeFile(dir, flags.perf_curve_dir, bundle_options, bundle));
  DI_ASSIGN_OR_RETURN(auto engine, Engine::Create(model, options, clock, bundle.grammars.get(),
                                                  parts->cache->store.get()));
  auto worker =
      std::make_unique<InProcessWorker>(model_name, model, std::move(engine), role,
                                        SharedRoot(*parts->cache), parts->cache->weights_hash);
  const LoadReport load = worker->Load();
  // Benchmark drivers search for this line, also on a CPU.
  Tell("GPU KV cache size: {} tokens\n", load.kv_capacity_tokens);
  Log(LogLevel::kInfo, "model.ready",
      {{"numerics", worker->info().numerics_id},
       {"max_model_len", worker->info().max_model_len},
       {"threads", bundle.pool->num_threads()}});
  LogMemory(*model, load);
  return std::unique_ptr<Worker>(std::move(worker));
}

}  // namespace deepinfer
