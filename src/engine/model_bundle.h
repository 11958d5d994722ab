// A model folder opened for serving: tokenizer, weights, kernels and their threads, in the order
// in which they must be destroyed.
// Thread rule: loaded by one thread; the parts have their own rules.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "base/cpu_features.h"
#include "base/load_progress.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "kernels/ops.h"
#include "model/model.h"
#include "text/grammar_pool.h"
#include "text/tokenizer.h"

namespace deepinfer {

enum class ThreadPlacement : unsigned char {
  kAuto,       // kPinned on several memory nodes, else kScheduler
  kPinned,     // every compute thread but the caller's stays on one core
  kScheduler,  // a thread that lost its core may move to an idle one
};

struct BundleOptions {
  ModelOptions model;
  // Of the pool that compiles grammars; none without. It is made before the weights are loaded,
  // because it forks this process.
  std::optional<GrammarPoolOptions> grammars;
  int num_threads = 0;  // compute threads; 0 = one per core the process may use
  IsaLevel isa = DetectIsaLevel();
  ThreadPlacement placement = ThreadPlacement::kAuto;
};

struct ModelBundle {
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<Operators> ops;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<GrammarPool> grammars;  // null unless asked for
  std::unique_ptr<Model> model;

  // Opens DIR. progress, when given, follows the load; on failure it is set to kFailed.
  static Result<ModelBundle> Load(const std::filesystem::path& dir, const BundleOptions& options,
                                  LoadProgress* progress);
};

// Cores this process may run on.
int AvailableCores();

}  // namespace deepinfer
