#include "engine/model_bundle.h"

#include <sched.h>

#include "kernels/backends.h"
#include "text/engram_token_map.h"

namespace deepinfer {

namespace {

Result<ModelBundle> LoadParts(const std::filesystem::path& dir, const BundleOptions& options,
                              LoadProgress* progress) {
  ModelBundle b;
  b.pool = std::make_unique<ThreadPool>(options.num_threads > 0 ? options.num_threads
                                                                : AvailableCores());
  if (options.reference_kernels) {
    b.ops = MakeReferenceOperators();
  } else {
    DI_ASSIGN_OR_RETURN(b.ops, MakeCpuOperators(options.isa, b.pool.get()));
  }
  if (progress != nullptr) progress->Set(LoadPhase::kTokenizer, 0, 0);
  // A wrong configuration is the commoner mistake, so it is reported before the tokenizer's.
  DI_ASSIGN_OR_RETURN(const ModelConfig config, ModelConfig::Load(dir));
  DI_ASSIGN_OR_RETURN(b.tokenizer, Tokenizer::Load(dir));
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

int AvailableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  const int n = CPU_COUNT(&set);
  return n > 0 ? n : 1;
}

Result<ModelBundle> ModelBundle::Load(const std::filesystem::path& dir,
                                      const BundleOptions& options, LoadProgress* progress) {
  Result<ModelBundle> bundle = LoadParts(dir, options, progress);
  if (!bundle.ok() && progress != nullptr) progress->Set(LoadPhase::kFailed, 0, 0);
  return bundle;
}

}  // namespace deepinfer
