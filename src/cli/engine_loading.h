// Opens a model and starts an engine on it, with the lines on stderr that people and tools look
// for. Thread rule: one thread.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/load_progress.h"
#include "base/result.h"
#include "cli/serve_flags.h"
#include "cluster/worker.h"
#include "engine/model_bundle.h"

namespace deepinfer {

// What an engine runs on; destroyed in reverse order of members.
struct EngineParts {
  ModelBundle bundle;
  std::unique_ptr<KvCache> cache;

  bool owns_devices() const { return bundle.model != nullptr; }
};

// The worker borrows parts and clock. Errors are those of ModelBundle::Load, KvFlags::Open and
// Engine::Create.
Result<std::unique_ptr<Worker>> LoadInProcessWorker(const std::filesystem::path& dir,
                                                    const ServeFlags& flags,
                                                    const std::string& model_name, WorkerRole role,
                                                    LoadProgress* progress, EngineParts* parts,
                                                    const Clock* clock);

}  // namespace deepinfer
