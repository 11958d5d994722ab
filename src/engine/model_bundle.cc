#include "engine/model_bundle.h"

#include <algorithm>

#include "base/cpu_topology.h"
#include "base/thread_affinity.h"
#include "kernels/backends.h"
#include "text/engram_token_map.h"

namespace deepinfer {

namespace {

void PlaceThreads(ThreadPlacement placement, ThreadPool* pool) {
  const CpuTopology topology = ReadCpuTopology();
  const bool pinned = placement == ThreadPlacement::kPinned ||
                      (placement == ThreadPlacement::kAuto && topology.memory_nodes.size() > 1);
  if (pinned) PinWorkers(pool, PlanThreadCpus(topology, AllowedCpus(), pool->num_threads()));
}

Result<ModelBundle> LoadParts(const std::filesystem::path& dir, const BundleOptions& options,
                              LoadProgress* progress) {
  ModelBundle b;
  b.pool = std::make_unique<ThreadPool>(options.num_threads > 0 ? options.num_threads
                                                                : AvailableCores());
  PlaceThreads(options.placement, b.pool.get());
  DI_ASSIGN_OR_RETURN(b.ops, MakeCpuOperators(options.isa, b.pool.get()));
  if (progress != nullptr) progress->Set(LoadPhase::kTokenizer, 0, 0);
  // A wrong configuration is the commoner mistake, so it is reported before the tokenizer's.
  DI_ASSIGN_OR_RETURN(const ModelConfig config, ModelConfig::Load(dir));
  DI_ASSIGN_OR_RETURN(b.tokenizer, Tokenizer::Load(dir));
  if (options.grammars) {
    DI_ASSIGN_OR_RETURN(b.grammars, GrammarPool::Create(*b.tokenizer, *options.grammars));
  }
  std::vector<int32_t> token_map;
  if (!config.engram.layer_ids.empty()) {
    DI_ASSIGN_OR_RETURN(token_map, BuildEngramTokenMap(*b.tokenizer));
  }
  ModelOptions model_options = options.model;
  if (progress != nullptr) {
    progress->Set(LoadPhase::kWeights, 0, 0);
    model_options.on_progress = [progress, inner = options.model.on_progress](uint64_t done,
                                                                              uint64_t total) {
      progress->Set(LoadPhase::kWeights, done, total);
      if (inner) inner(done, total);
    };
  }
  DI_ASSIGN_OR_RETURN(b.model, Model::Load(dir, std::move(token_map), model_options, b.ops.get()));
  return b;
}

}  // namespace

int AvailableCores() { return std::max(1, static_cast<int>(AllowedCpus().size())); }

Result<ModelBundle> ModelBundle::Load(const std::filesystem::path& dir,
                                      const BundleOptions& options, LoadProgress* progress) {
  Result<ModelBundle> bundle = LoadParts(dir, options, progress);
  if (!bundle.ok() && progress != nullptr) progress->Set(LoadPhase::kFailed, 0, 0);
  return bundle;
}

}  // namespace deepinfer
