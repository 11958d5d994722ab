#include "model/draft_model.h"

#include <new>

#include "model/draft_runner.h"

namespace deepinfer {

DraftModel::DraftModel(const Model& model)
    : model_(model), rope_(model.config(), model.max_positions()), workspace_(model.ops()) {}

template <typename Work>
Status DraftModel::WithScratch(const Work& work) {
  const ModelOptions& options = model_.options();
  const StepContext context{model_.ops(),
                            &model_.config(),
                            &model_.weights(),
                            &model_.layout(),
                            &model_.engram_hasher(),
                            &rope_,
                            ArithmeticOf(options.numerics, options.prod_deviations),
                            &workspace_};
  try {
    const Workspace::Scope scope(&workspace_);
    DraftRunner runner(context);
    work(runner);
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("no memory for the scratch buffers of the draft model");
  }
  return OkStatus();
}

Status DraftModel::InjectContext(std::span<const DraftContext> contexts) {
  return WithScratch([&](DraftRunner& runner) { runner.Inject(contexts); });
}

Status DraftModel::Draft(std::span<const DraftSequence> sequences, DraftRows* out) {
  return WithScratch([&](DraftRunner& runner) { runner.Run(sequences, out); });
}

Status DraftModel::Propose(const DraftRows& rows, int32_t k, std::span<const int32_t> previous,
                           DraftProposal* out) {
  return WithScratch([&](DraftRunner& runner) { runner.Propose(rows, k, previous, out); });
}

}  // namespace deepinfer
