#include "cli/registry_flags.h"

#include <unistd.h>

#include <CLI/CLI.hpp>

#include "cluster/registry_keys.h"

namespace deepinfer {

namespace {

// A registry on the same network answers in milliseconds; a slow one must not hold anybody up.
constexpr std::chrono::milliseconds kAnswerLimit{2000};

std::string HostName() {
  char name[256] = "";
  return gethostname(name, sizeof name - 1) == 0 && name[0] != '\0' ? name : "localhost";
}

void RegisterPlace(RegistryFlags* flags, CLI::App* app) {
  app->add_option("--registry", flags->registry,
                  "etcd or `deepinfer registry`: HOST:PORT or unix:PATH");
  app->add_option("--cluster", flags->cluster, "Name of the cluster in the registry")
      ->capture_default_str();
  app->add_option("--cell", flags->cell, "Name of the cell: workers that share a cache")
      ->capture_default_str();
}

}  // namespace

void RegistryFlags::RegisterWorker(CLI::App* app) {
  RegisterPlace(this, app);
  app->add_option("--node", node, "Name of this machine in the registry; default: the host's");
  app->add_option("--advertise", advertise,
                  "Where gateways and workers reach this one; default: the address of --listen");
}

void RegistryFlags::RegisterGateway(CLI::App* app) { RegisterPlace(this, app); }

Status RegistryFlags::Check() const {
  for (const auto& [flag, name] : {std::pair("--cluster", &cluster), std::pair("--cell", &cell)}) {
    if (name->empty() || name->find('/') != std::string::npos) {
      return InvalidRequest(std::string(flag) + " must not be empty or contain '/'");
    }
  }
  if (node.find('/') != std::string::npos) return InvalidRequest("--node must not contain '/'");
  return OkStatus();
}

std::unique_ptr<Registration> RegistryFlags::Announce(const std::string& endpoint,
                                                      const WorkerInfo& info) const {
  if (registry.empty()) return nullptr;
  return std::make_unique<Registration>(
      MakeRegistryClient(registry, kAnswerLimit),
      WorkerKey(cluster, cell, node.empty() ? HostName() : node, info.incarnation),
      EntryOfWorker(info, advertise.empty() ? endpoint : advertise), RegistrationOptions{});
}

std::unique_ptr<WorkerDirectory> RegistryFlags::Follow(WorkerDirectory::OnChange on_change) const {
  if (registry.empty()) return nullptr;
  return WorkerDirectory::FollowRegistry(MakeRegistryClient(registry, kAnswerLimit),
                                         WorkerPrefix(cluster, cell), std::move(on_change));
}

}  // namespace deepinfer
