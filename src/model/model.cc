#include "model/model.h"

#include <unistd.h>

#include <algorithm>
#include <new>

#include "base/cpu_topology.h"
#include "base/memory_pages.h"
#include "model/step_runner.h"

namespace deepinfer {

namespace {
// Granularity of page-in progress.
constexpr uint64_t kPrefaultChunk = 4 << 20;

// Reading a larger file ahead would push its own first pages out again.
bool FitsInMemory(uint64_t size_bytes) {
  const auto pages = static_cast<uint64_t>(std::max(0L, sysconf(_SC_PHYS_PAGES)));
  return size_bytes <= pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) / 2;
}
}  // namespace

Result<std::unique_ptr<Model>> Model::Load(const std::filesystem::path& dir,
                                           std::vector<int32_t> engram_token_map,
                                           const ModelOptions& options, Operators* ops) {
  DI_ASSIGN_OR_RETURN(ModelConfig config, ModelConfig::Load(dir));
  DI_ASSIGN_OR_RETURN(EngramHasher hasher,
                      EngramHasher::Create(config, std::move(engram_token_map)));
  DI_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(dir.string()));
  std::unique_ptr<Model> model(new Model(std::move(checkpoint), options, ops));
  // Of a part the pages come in as they are used.
  const bool reads_ahead = options.on_progress && options.part == ModelPart::kWhole &&
                           FitsInMemory(model->checkpoint_.total_bytes());
  // Before anything reads the weights: pages keep the size they are first read in.
  if (reads_ahead) {
    model->checkpoint_.UseHugePages();
  } else {
    model->checkpoint_.Advise(MapAdvice::kHugePages);
  }
  DI_ASSIGN_OR_RETURN(model->weights_, LoadModelWeights(config, options.part, options.weight_checks,
                                                        &model->checkpoint_));
  if (reads_ahead) {
    // Every core reads all weights, so no node may hold more than its share.
    const InterleavedPages interleaved(ReadCpuTopology().memory_nodes);
    DI_RETURN_IF_ERROR(
        model->checkpoint_.Prefault(kPrefaultChunk, [&](uint64_t done, uint64_t total) {
          options.on_progress(done, total);
          return true;
        }));
  }
  model->layout_ = KvLayout::Create(config, options.kv_format);
  model->max_positions_ = std::min(options.max_positions, config.max_positions);
  model->rope_ = std::make_unique<RopeTables>(config, model->max_positions_);
  model->hasher_ = std::move(hasher);
  model->config_ = std::move(config);
  return model;
}

Status Model::Step(std::span<const SequenceStep> sequences, bool want_main_hidden, StepOutput* out,
                   StepProbe* probe) {
  const StepContext context{ops_,
                            &config_,
                            &weights_,
                            &layout_,
                            &hasher_,
                            rope_.get(),
                            ArithmeticOf(options_.numerics, options_.prod_deviations),
                            &workspace_};
  try {
    const Workspace::Scope scope(&workspace_);
    StepRunner runner(context, sequences, want_main_hidden, probe);
    runner.Run(out);
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("no memory for the scratch buffers of a step");
  }
  return OkStatus();
}

}  // namespace deepinfer
