#include "cluster/prefix_probe.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "model/kv_layout.h"

namespace deepinfer {

namespace {

// An index in memory answers within a fraction of it; a first token must not wait for less
// (docs/cluster.md §4).
constexpr std::chrono::milliseconds kLimit{5};

}  // namespace

void PrefixProbe::Follow(const WorkerSet::List& workers) {
  std::vector<Source> sources;
  for (const auto& worker : workers) {
    const WorkerInfo info = worker->info();
    const bool speaks_for_all = !info.kv_root.empty() || workers.size() == 1;
    const LoadReport load = worker->Load();
    if (!speaks_for_all || !load.ready || load.draining) continue;
    if (!info.answers_probes || !info.kv_namespace) continue;
    KeyOrigin origin;
    origin.namespace_id = *info.kv_namespace;
    origin.block_tokens = kBlockTokens;
    sources.push_back({worker, origin});
  }
  const std::lock_guard lock(mutex_);
  sources_ = std::move(sources);
}

std::optional<PrefixProbe::Source> PrefixProbe::Next() {
  const std::lock_guard lock(mutex_);
  if (sources_.empty()) return std::nullopt;
  return sources_[next_++ % sources_.size()];
}

void PrefixProbe::Leave(const Worker* worker) {
  const std::lock_guard lock(mutex_);
  std::erase_if(sources_, [&](const Source& s) { return s.worker.get() == worker; });
}

StoredPrefix PrefixProbe::Find(const EngineRequest& request) {
  const auto prompt_tokens = static_cast<int32_t>(request.prompt_ids.size());
  // Every row of these runs.
  if (prompt_tokens < kBlockTokens || request.sampling.prompt_logprobs) return {};
  std::optional<Source> source = Next();
  if (!source) return {};
  source->origin.scope.digest = request.cache_scope;
  const std::vector<BlockKey> keys = ComputeBlockKeys(source->origin, request.prompt_ids, {});
  const auto stored = source->worker->Probe(keys, prompt_tokens, kLimit);
  if (!stored) Leave(source->worker.get());
  const std::lock_guard lock(mutex_);
  ++counts_.asked;
  counts_.unanswered += stored ? 0 : 1;
  counts_.prompt_tokens += prompt_tokens;
  const StoredPrefix found = stored.value_or(StoredPrefix());
  counts_.own_tokens += found.own_tokens;
  counts_.peer_tokens += found.peer_tokens;
  return found;
}

PrefixProbe::Counts PrefixProbe::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

}  // namespace deepinfer
