// Runs a function in a process of its own, under limits of time and memory: for work on outside
// input that cannot be interrupted and whose cost cannot be foreseen. A run that takes too long,
// asks for too much memory, overflows its stack or crashes ends alone.
// Thread rule: one caller at a time. Owner: whoever started it; the destructor ends its processes.
//
// Start forks a host process while this one is still small; each run is a fork of the host, so a
// run costs the pages of the host, not those of a server that has since loaded its weights.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace deepinfer {

struct IsolationLimits {
  int64_t time_us = 2'000'000;              // wall clock of one run
  int64_t memory_bytes = int64_t{1} << 29;  // address space of a run beyond what the host has
  int64_t max_reply_bytes = int64_t{1} << 28;
};

class IsolatedRunner {
 public:
  // Runs in the forked process: it sees the memory of the moment of Start and changes to it are
  // lost. It must not start threads. What it throws becomes an error of its run.
  using Handler = std::function<std::string(std::string_view request)>;

  // Errors: unavailable if the system refuses a process.
  static Result<std::unique_ptr<IsolatedRunner>> Start(Handler handler, IsolationLimits limits);
  ~IsolatedRunner();
  IsolatedRunner(const IsolatedRunner&) = delete;
  IsolatedRunner& operator=(const IsolatedRunner&) = delete;

  // The handler's answer. Errors: deadline; resource_exhausted (memory or size of the reply);
  // internal for a crash and for exceptions; unavailable if the host is gone: the next call
  // starts another.
  Result<std::string> Run(std::string_view request);

  pid_t host_pid() const { return host_pid_; }

 private:
  IsolatedRunner(Handler handler, IsolationLimits limits);

  Status StartHost();
  void EndHost();

  const Handler handler_;
  const IsolationLimits limits_;
  pid_t host_pid_ = -1;
  int socket_ = -1;
};

}  // namespace deepinfer
