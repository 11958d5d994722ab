#include "engine/actions/store_blocks.h"

#include <limits>

#include "engine/actions/load_hit.h"
#include "kvcache/kv_store.h"

namespace deepinfer {

namespace {

// Without the prefix cache every request has keys of its own that nobody asks for again.
bool Persists(const EngineState& state, const Sequence& s) {
  return state.store != nullptr && state.options.prefix_cache && s.request.cache_retention.persist;
}

}  // namespace

void StoreBlock(EngineState& state, Sequence& s, int32_t i) {
  const CacheRetention& retention = s.request.cache_retention;
  if (!Persists(state, s) || (int64_t{i} + 1) * kBlockTokens > retention.kept_tokens) return;
  const auto at = static_cast<size_t>(i);
  const int32_t block = s.device.block_table[at];
  PublishRequest publish;
  publish.key = s.cache.chain.keys()[at];
  publish.parent = s.cache.chain.ParentOf(at);
  publish.block_number = static_cast<uint32_t>(i);
  publish.retention = retention.retention;
  publish.tenant_tag = retention.tenant_tag;
  publish.replay_gen = state.memory->blocks().replay_gen(block);
  publish.replace_above_gen = ReplaceAboveGen(state);
  publish.has_generated = (int64_t{i} + 1) * kBlockTokens > s.prompt_len;
  publish.max_lifetime_hours = retention.max_lifetime_hours;
  // A refusal is counted by the store and costs no more than a later miss.
  const int64_t size_bytes = state.memory->layout().block_bytes;
  const PublishResult result =
      state.store->Publish(publish, {state.memory->Block(block), static_cast<size_t>(size_bytes)});
  if (result == PublishResult::kQueued) s.counters.disk_write_bytes += size_bytes;
}

void KeepHit(EngineState& state, Sequence& s) {
  const int32_t hit = s.cache.write_from / kBlockTokens;
  if (hit == 0 || !Persists(state, s)) return;
  const std::span<const BlockKey> keys(s.cache.chain.keys().data(), static_cast<size_t>(hit));
  state.store->Touch(keys, s.request.cache_retention.retention);
  const LookupResult stored = state.store->Lookup(keys, std::numeric_limits<uint16_t>::max());
  for (auto i = static_cast<int32_t>(stored.blocks.size()); i < hit; ++i) StoreBlock(state, s, i);
}

}  // namespace deepinfer
