#include "model/draft_model.h"

#include <algorithm>
#include <new>

#include "model/draft_runner.h"

namespace deepinfer {

namespace {

// A small part of what the weights take, for a few hundred tokens of any vocabulary.
int64_t MarkovBytes(const Model& model) {
  constexpr int64_t kLeast = int64_t{8} << 20;
  return std::max(kLeast, static_cast<int64_t>(model.checkpoint().total_bytes() / 256));
}

}  // namespace

DraftModel::DraftModel(const Model& model)
    : model_(model),
      rope_(model.config(), model.max_positions()),
      workspace_(model.ops()),
      markov_rows_(model.config().vocab_size, MarkovBytes(model)) {}

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

Status DraftModel::Draft(std::span<const DraftSequence> sequences, int32_t num_drafts,
                         DraftRows* out) {
  return WithScratch([&](DraftRunner& runner) { runner.Run(sequences, num_drafts, out); });
}

Status DraftModel::Propose(const DraftRows& rows, int32_t k, std::span<const int32_t> previous,
                           DraftProposal* out) {
  return WithScratch(
      [&](DraftRunner& runner) { runner.Propose(rows, k, previous, &markov_rows_, out); });
}

}  // namespace deepinfer
