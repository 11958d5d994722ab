// Where the workers of a cell are, as the registry or a file tells: the view of the last good
// answer is kept for as long as there is no better one (docs/cluster.md §7).
// Thread rule: one thread of its own, which runs the callback. Owner: the gateway's command.
#pragma once

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cluster/registry.h"
#include "cluster/worker.h"

namespace deepinfer {

class WorkerDirectory {
 public:
  // Endpoints in order, without repeats; called when they changed.
  using OnChange = std::function<void(const std::vector<std::string>& endpoints)>;

  virtual ~WorkerDirectory() = default;

  // Follows the keys below WorkerPrefix.
  static std::unique_ptr<WorkerDirectory> FollowRegistry(std::unique_ptr<Registry> registry,
                                                         std::string prefix, OnChange on_change);
  // A file with one endpoint a line, read again when it changes; '#' begins a comment.
  static std::unique_ptr<WorkerDirectory> FollowFile(std::filesystem::path path,
                                                     OnChange on_change);
};

// The value of a worker's key: its Hello with an endpoint.
std::string EntryOfWorker(const WorkerInfo& info, const std::string& endpoint);
// Empty when the value is none.
std::string EndpointOfEntry(const std::string& value);

}  // namespace deepinfer
