// Keeps an entry of this process in the registry for as long as it lives. Losing the registry, or
// the lease, changes nothing for requests: the entry is written again when it can be
// (docs/cluster.md §7).
// Thread rule: one thread of its own. Owner: the command that runs the process.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "cluster/registry.h"

namespace deepinfer {

struct RegistrationOptions {
  std::chrono::seconds lease{10};
  std::chrono::milliseconds least_backoff{200};
  std::chrono::milliseconds most_backoff{2000};
};

class Registration {
 public:
  Registration(std::unique_ptr<Registry> registry, std::string key, std::string value,
               const RegistrationOptions& options);
  ~Registration();  // takes the entry back where the registry answers

 private:
  void Loop();
  // How long to wait before the next turn.
  std::chrono::milliseconds Turn();
  Status Register();

  const std::unique_ptr<Registry> registry_;
  const std::string key_;
  const std::string value_;
  const RegistrationOptions options_;
  int64_t lease_ = 0;  // of the thread; 0: none
  std::chrono::milliseconds backoff_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace deepinfer
