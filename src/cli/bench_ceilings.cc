#include "cli/bench_ceilings.h"

#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

namespace deepinfer {

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kReadBytes = size_t{512} << 20;  // far beyond the last-level cache
constexpr int kRounds = 5;
constexpr int64_t kIterations = 2'000'000;
constexpr int kAccumulators = 12;  // enough to hide the latency of a multiply-add

double Seconds(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Best time of several rounds, in seconds.
double Best(const std::function<void()>& work) {
  double best = 1e30;
  for (int i = 0; i < kRounds; ++i) {
    const Clock::time_point start = Clock::now();
    work();
    best = std::min(best, Seconds(start));
  }
  return best;
}

[[gnu::target("avx2")]] uint64_t SumBytes(const std::byte* data, size_t size) {
  __m256i acc[4] = {};
  for (size_t i = 0; i + 128 <= size; i += 128) {
    for (size_t j = 0; j < 4; ++j) {
      acc[j] = _mm256_xor_si256(
          acc[j], _mm256_load_si256(reinterpret_cast<const __m256i*>(data + i + 32 * j)));
    }
  }
  const __m256i all =
      _mm256_xor_si256(_mm256_xor_si256(acc[0], acc[1]), _mm256_xor_si256(acc[2], acc[3]));
  return static_cast<uint64_t>(_mm256_extract_epi64(all, 0));
}

// A start value the compiler cannot know: equal chains would be computed once.
float Seed(int i) {
  const volatile float x = static_cast<float>(i);
  return x;
}

// Each returns a value that depends on the work, so that it cannot be removed. FLOPs per call:
// kIterations · kAccumulators · lanes · 2.
[[gnu::target("avx2,fma")]] float FmaAvx2() {
  __m256 acc[kAccumulators];
  for (int i = 0; i < kAccumulators; ++i) acc[i] = _mm256_set1_ps(Seed(i));
  const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(1e-3f);
  for (int64_t i = 0; i < kIterations; ++i) {
    for (auto& v : acc) v = _mm256_fmadd_ps(v, a, b);
  }
  for (int i = 1; i < kAccumulators; ++i) acc[0] = _mm256_add_ps(acc[0], acc[i]);
  return _mm256_cvtss_f32(acc[0]);
}

[[gnu::target("avx512f")]] float FmaAvx512() {
  __m512 acc[kAccumulators];
  for (int i = 0; i < kAccumulators; ++i) acc[i] = _mm512_set1_ps(Seed(i));
  const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(1e-3f);
  for (int64_t i = 0; i < kIterations; ++i) {
    for (auto& v : acc) v = _mm512_fmadd_ps(v, a, b);
  }
  for (int i = 1; i < kAccumulators; ++i) acc[0] = _mm512_add_ps(acc[0], acc[i]);
  return _mm512_cvtss_f32(acc[0]);
}

[[gnu::target("avx512f,avx512bw,avx512vl,avx512bf16")]] float DotBf16() {
  __m512 acc[kAccumulators];
  for (int i = 0; i < kAccumulators; ++i) acc[i] = _mm512_set1_ps(Seed(i));
  const __m512bh a = reinterpret_cast<__m512bh>(_mm512_set1_epi32(0x3c003c00));
  for (int64_t i = 0; i < kIterations; ++i) {
    for (auto& v : acc) v = _mm512_dpbf16_ps(v, a, a);
  }
  for (int i = 1; i < kAccumulators; ++i) acc[0] = _mm512_add_ps(acc[0], acc[i]);
  return _mm512_cvtss_f32(acc[0]);
}

double PeakGflops(float (*kernel)(), double flops_per_call, ThreadPool* pool) {
  const int threads = pool->num_threads();
  volatile float sink = 0;
  const double seconds =
      Best([&] { pool->ParallelFor(threads, [&](int64_t) { sink = kernel(); }); });
  return flops_per_call * threads / seconds * 1e-9;
}

}  // namespace

Ceilings MeasureCeilings(IsaLevel isa, ThreadPool* pool) {
  Ceilings c;
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> memory(kReadBytes / sizeof(Line));
  std::fill_n(reinterpret_cast<uint8_t*>(memory.data()), kReadBytes, uint8_t{1});
  const auto* data = reinterpret_cast<const std::byte*>(memory.data());
  constexpr int64_t kTiles = 64;
  volatile uint64_t sink = 0;
  const double seconds = Best([&] {
    pool->ParallelFor(kTiles, [&](int64_t tile) {
      constexpr size_t kTile = kReadBytes / kTiles;
      sink = SumBytes(data + static_cast<size_t>(tile) * kTile, kTile);
    });
  });
  c.read_gb_per_s = static_cast<double>(kReadBytes) / seconds * 1e-9;

  const double iterations = static_cast<double>(kIterations) * kAccumulators * 2;
  const bool wide = isa >= IsaLevel::kAvx512;
  c.fp32_gflop_per_s = PeakGflops(wide ? FmaAvx512 : FmaAvx2, iterations * (wide ? 16 : 8), pool);
  if (isa >= IsaLevel::kAvx512Bf16) c.bf16_gflop_per_s = PeakGflops(DotBf16, iterations * 32, pool);
  return c;
}

}  // namespace deepinfer
