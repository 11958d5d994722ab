// Where a process of a cluster finds the others: registry or file, and the names of its place.
// Thread rule: main thread.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "base/result.h"
#include "cluster/registration.h"
#include "cluster/worker_directory.h"

namespace CLI {
class App;
}

namespace deepinfer {

struct RegistryFlags {
  std::string registry;  // HOST:PORT or unix:PATH; empty: none
  std::string cluster = "default";
  std::string cell = "default";
  std::string node;       // default: the host's name
  std::string advertise;  // of a worker; default: where it listens

  void RegisterWorker(CLI::App* app);
  void RegisterGateway(CLI::App* app);

  // invalid_request: a name that cannot be part of a key.
  Status Check() const;

  // Null without a registry.
  std::unique_ptr<Registration> Announce(const std::string& endpoint, const WorkerInfo& info) const;
  std::unique_ptr<WorkerDirectory> Follow(WorkerDirectory::OnChange on_change) const;
};

}  // namespace deepinfer
