// Cost of naming and finding cached blocks, and of checking their bytes.
// usage: kvcache_bench [--benchmark_filter=...]
#include <benchmark/benchmark.h>

#include <vector>

#include "base/crc32c.h"
#include "kvcache/block_pool.h"
#include "kvcache/keys.h"

namespace deepinfer {
namespace {

constexpr int32_t kBlockTokens = 128;

std::vector<int32_t> Tokens(int64_t count) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(i * 7919 % 129280));
  return tokens;
}

KeyOrigin Origin() {
  KeyOrigin origin;
  origin.block_tokens = kBlockTokens;
  return origin;
}

// Argument: tokens of the prompt.
void BM_ComputeBlockKeys(benchmark::State& state) {
  const std::vector<int32_t> tokens = Tokens(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(ComputeBlockKeys(Origin(), tokens, {}));
  state.counters["us_per_block"] = benchmark::Counter(
      static_cast<double>(state.iterations() * state.range(0) / kBlockTokens) / 1e6,
      benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(BM_ComputeBlockKeys)->Arg(1 << 13)->Arg(1 << 20);

void BM_FindPrefix(benchmark::State& state) {
  const auto keys = ComputeBlockKeys(Origin(), Tokens(state.range(0)), {});
  BlockPool pool(static_cast<int32_t>(keys.size()) + 1);
  for (const BlockKey& key : keys) pool.Publish(pool.Allocate(), key, 0);
  for (auto _ : state) benchmark::DoNotOptimize(pool.CountHit(keys, 0));
}
BENCHMARK(BM_FindPrefix)->Arg(1 << 20);

// Argument: bytes; the first is a stored block of the released model.
void BM_Crc32c(benchmark::State& state) {
  const std::vector<std::byte> bytes(static_cast<size_t>(state.range(0)), std::byte{0x5A});
  for (auto _ : state) benchmark::DoNotOptimize(Crc32c(bytes));
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_Crc32c)->Arg(114'688)->Arg(64 << 20);

}  // namespace
}  // namespace deepinfer

BENCHMARK_MAIN();
