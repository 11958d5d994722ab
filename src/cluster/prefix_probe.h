// Asks a worker of the cell what the persistent cache holds of a prompt before it is placed: the
// answer enters predicted costs, never the choice of candidates (docs/cluster.md §4).
// Thread rule: any thread. Owner: Gateway.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "cluster/worker_set.h"
#include "engine/request.h"

namespace deepinfer {

class PrefixProbe {
 public:
  // Looks which workers may be asked from now on: those whose cache the others share, or the only
  // one. Called by the keeper of the gateway.
  void Follow(const WorkerSet::List& workers);

  // Nothing stored when there is nobody to ask, or no answer in time.
  StoredPrefix Find(const EngineRequest& request);

  // Since the start.
  struct Counts {
    int64_t asked = 0;
    int64_t unanswered = 0;
    // Of the prompts that were asked for.
    int64_t prompt_tokens = 0;
    int64_t own_tokens = 0;
    int64_t peer_tokens = 0;
  };
  Counts counts() const;

 private:
  struct Source {
    std::shared_ptr<Worker> worker;
    KeyOrigin origin;
  };

  // The next one in turn.
  std::optional<Source> Next();
  // It is not asked again before the next look.
  void Leave(const Worker* worker);

  mutable std::mutex mutex_;
  std::vector<Source> sources_;  // under mutex_, as all below
  size_t next_ = 0;
  Counts counts_;
};

}  // namespace deepinfer
