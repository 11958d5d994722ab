#include "kvcache/trace_replay.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <iterator>
#include <limits>
#include <set>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "kvcache/block_index.h"
#include "kvcache/block_pool.h"

namespace deepinfer {
namespace {

// The index counts time in minutes; here each of its minutes is a tenth of a second.
constexpr int64_t kMsPerTick = 100;

}  // namespace

BlockKey TraceKey(uint64_t id) {
  BlockKey key;
  uint64_t word = id + 0x9E3779B97F4A7C15;
  word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9;
  word = (word ^ (word >> 27)) * 0x94D049BB133111EB;
  word ^= word >> 31;
  std::memcpy(key.bytes.data(), &word, sizeof(word));
  std::memcpy(key.bytes.data() + sizeof(word), &id, sizeof(id));
  return key;
}

Result<std::vector<TraceRequest>> SplitIds(std::span<const TraceRequest> requests,
                                           int64_t id_tokens, int64_t block_tokens) {
  if (block_tokens <= 0 || id_tokens % block_tokens != 0) {
    return InvalidRequest("the tokens of an id are no multiple of those of a block");
  }
  const auto parts = static_cast<uint64_t>(id_tokens / block_tokens);
  std::vector<TraceRequest> split;
  if (parts == 1) {
    split.assign(requests.begin(), requests.end());
    return split;
  }
  for (const TraceRequest& request : requests) {
    TraceRequest blocks{request.time_ms, request.input_tokens, {}};
    const auto whole_blocks = static_cast<size_t>(request.input_tokens / block_tokens);
    for (const uint64_t id : request.ids) {
      for (uint64_t part = 0; part < parts && blocks.ids.size() < whole_blocks; ++part) {
        blocks.ids.push_back(id * parts + part);
      }
    }
    split.push_back(std::move(blocks));
  }
  return split;
}

int64_t CountUniqueIds(std::span<const TraceRequest> requests) {
  std::unordered_set<uint64_t> unique;
  for (const TraceRequest& request : requests) {
    unique.insert(request.ids.begin(), request.ids.end());
  }
  return static_cast<int64_t>(unique.size());
}

Result<TraceTotals> ReplayTrace(std::span<const TraceRequest> requests, int64_t id_tokens,
                                int64_t capacity_blocks) {
  if (capacity_blocks < 0 || capacity_blocks >= std::numeric_limits<int32_t>::max()) {
    return InvalidRequest("the number of blocks is out of range");
  }
  BlockPool pool(static_cast<int32_t>(capacity_blocks) + 1);
  TraceTotals totals;
  for (const TraceRequest& request : requests) {
    std::vector<BlockKey> keys;
    for (const uint64_t id : request.ids) keys.push_back(TraceKey(id));
    std::vector<int32_t> table = pool.AcquireHit(keys, std::numeric_limits<uint16_t>::max());
    const size_t hit = table.size();
    if (!pool.Allocate(static_cast<int64_t>(keys.size() - hit), &table)) {
      return ResourceExhausted("a prompt needs more blocks than there are");
    }
    for (size_t i = hit; i < keys.size(); ++i) pool.Publish(table[i], keys[i], 0);
    pool.ReleaseChain(table);
    ++totals.requests;
    totals.input_tokens += request.input_tokens;
    totals.hit_tokens += std::min(static_cast<int64_t>(hit) * id_tokens, request.input_tokens);
  }
  totals.unique_blocks = CountUniqueIds(requests);
  totals.reclaimed_blocks = pool.stats().reclaimed;
  return totals;
}

TraceTotals ReplayTraceBelady(std::span<const TraceRequest> requests, int64_t id_tokens,
                              int64_t capacity_blocks) {
  constexpr size_t kNever = std::numeric_limits<size_t>::max();
  std::unordered_map<uint64_t, std::deque<size_t>> uses;  // those to come, by number of request
  for (size_t i = 0; i < requests.size(); ++i) {
    for (const uint64_t id : requests[i].ids) uses[id].push_back(i);
  }
  using Resident = std::tuple<size_t, size_t, uint64_t>;  // next use, depth, id
  std::set<Resident> order;
  std::unordered_map<uint64_t, Resident> residents;
  TraceTotals totals;
  for (const TraceRequest& request : requests) {
    const auto& ids = request.ids;
    size_t hit = 0;
    while (hit < ids.size() && residents.contains(ids[hit])) ++hit;
    ++totals.requests;
    totals.input_tokens += request.input_tokens;
    totals.hit_tokens += std::min(static_cast<int64_t>(hit) * id_tokens, request.input_tokens);
    for (size_t depth = 0; depth < ids.size(); ++depth) {
      const uint64_t id = ids[depth];
      std::deque<size_t>& to_come = uses[id];
      to_come.pop_front();
      const Resident resident(to_come.empty() ? kNever : to_come.front(), depth, id);
      if (const auto it = residents.find(id); it != residents.end()) order.erase(it->second);
      residents[id] = resident;
      order.insert(resident);
    }
    while (static_cast<int64_t>(order.size()) > capacity_blocks) {
      const auto farthest = std::prev(order.end());
      residents.erase(std::get<2>(*farthest));
      order.erase(farthest);
      ++totals.reclaimed_blocks;
    }
  }
  totals.unique_blocks = CountUniqueIds(requests);
  return totals;
}

TraceTotals ReplayTraceTtl(std::span<const TraceRequest> requests, int64_t id_tokens,
                           int64_t ttl_ms) {
  BlockIndex index;
  TraceTotals totals;
  for (const TraceRequest& request : requests) {
    const auto tick = static_cast<uint32_t>(request.time_ms / kMsPerTick);
    std::vector<BlockKey> keys;
    for (const uint64_t id : request.ids) keys.push_back(TraceKey(id));
    int64_t hit = 0;
    bool leading = true;
    for (const BlockKey& key : keys) {
      const auto found = index.Find(key);
      const bool expired = found && (int64_t{tick} - found->touched_minute) * kMsPerTick > ttl_ms;
      if (expired) {
        index.Erase(key, found->location);
        ++totals.reclaimed_blocks;
      }
      leading = leading && found && !expired;
      hit += leading ? 1 : 0;
      IndexedBlock block;
      block.location = {1, 0};
      block.touched_minute = tick;
      (void)index.Insert(key, block);
    }
    index.Touch(keys, tick, RetentionClass::kBatch);
    ++totals.requests;
    totals.input_tokens += request.input_tokens;
    totals.hit_tokens += std::min(hit * id_tokens, request.input_tokens);
  }
  totals.unique_blocks = CountUniqueIds(requests);
  return totals;
}

}  // namespace deepinfer
