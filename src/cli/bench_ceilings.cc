#include "cli/bench_ceilings.h"

#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/memory_pages.h"

namespace deepinfer {

namespace {

constexpr size_t kReadBytes = size_t{256} << 20;  // far beyond the last-level cache
constexpr int64_t kReadTiles = 64;
constexpr int64_t kIterations = 1'000'000;
constexpr int kAccumulators = 10;  // hides the latency of a multiply-add and leaves operands room

// Work per call of a peak kernel; returns a value that depends on it, so that it is not removed.
struct PeakKernel {
  float (*run)() = nullptr;
  double operations_per_call = 0;
};

double Seconds(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// A start value the compiler cannot know: equal chains would be computed once.
int Seed(int i) {
  const volatile int x = i;
  return x;
}

[[gnu::target("avx2")]] uint64_t XorBytes(const std::byte* data, size_t size) {
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

[[gnu::target("avx2,fma")]] float FmaAvx2() {
  __m256 acc[kAccumulators];
  for (int i = 0; i < kAccumulators; ++i) acc[i] = _mm256_set1_ps(static_cast<float>(Seed(i)));
  const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(1e-3f);
  for (int64_t i = 0; i < kIterations; ++i) {
    for (auto& v : acc) v = _mm256_fmadd_ps(v, a, b);
  }
  for (int i = 1; i < kAccumulators; ++i) acc[0] = _mm256_add_ps(acc[0], acc[i]);
  return _mm256_cvtss_f32(acc[0]);
}

// One vector of bf16 pairs is widened and serves every accumulator, as in a tile of many rows.
[[gnu::target("avx2,fma")]] float PairsAvx2() {
  __m256 acc[kAccumulators];
  for (int i = 0; i < kAccumulators; ++i) acc[i] = _mm256_set1_ps(static_cast<float>(Seed(i)));
  __m256i pairs = _mm256_set1_epi32(0x3c003c00);
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xFFFF0000)), step = _mm256_set1_epi32(1);
  const __m256 x = _mm256_set1_ps(0.5f);
  for (int64_t i = 0; i < kIterations; ++i) {
    const __m256 odd = _mm256_castsi256_ps(_mm256_and_si256(pairs, high));
    const __m256 even = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
    for (auto& v : acc) v = _mm256_fmadd_ps(even, x, _mm256_fmadd_ps(odd, x, v));
    pairs = _mm256_xor_si256(pairs, step);
  }
  for (int i = 1; i < kAccumulators; ++i) acc[0] = _mm256_add_ps(acc[0], acc[i]);
  return _mm256_cvtss_f32(acc[0]);
}

[[gnu::target("avx2")]] float BytesAvx2() {
  __m256i acc[kAccumulators];
  for (int i = 0; i < kAccumulators; ++i) acc[i] = _mm256_set1_epi32(Seed(i));
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i a = _mm256_set1_epi8(1);
  for (int64_t i = 0; i < kIterations; ++i) {
    for (auto& v : acc) {
      const __m256i pairs = _mm256_maddubs_epi16(a, v);
      v = _mm256_add_epi32(v, _mm256_madd_epi16(pairs, ones));
    }
  }
  for (int i = 1; i < kAccumulators; ++i) acc[0] = _mm256_add_epi32(acc[0], acc[i]);
  return static_cast<float>(_mm256_extract_epi32(acc[0], 0));
}

[[gnu::target("avx512f")]] float FmaAvx512() {
  __m512 acc[kAccumulators];
  for (int i = 0; i < kAccumulators; ++i) acc[i] = _mm512_set1_ps(static_cast<float>(Seed(i)));
  const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(1e-3f);
  for (int64_t i = 0; i < kIterations; ++i) {
    for (auto& v : acc) v = _mm512_fmadd_ps(v, a, b);
  }
  for (int i = 1; i < kAccumulators; ++i) acc[0] = _mm512_add_ps(acc[0], acc[i]);
  return _mm512_cvtss_f32(acc[0]);
}

[[gnu::target("avx512f,avx512bw,avx512vl,avx512bf16")]] float PairsAvx512() {
  __m512 acc[kAccumulators];
  for (int i = 0; i < kAccumulators; ++i) acc[i] = _mm512_set1_ps(static_cast<float>(Seed(i)));
  const __m512bh a = reinterpret_cast<__m512bh>(_mm512_set1_epi32(0x3c003c00));
  for (int64_t i = 0; i < kIterations; ++i) {
    for (auto& v : acc) v = _mm512_dpbf16_ps(v, a, a);
  }
  for (int i = 1; i < kAccumulators; ++i) acc[0] = _mm512_add_ps(acc[0], acc[i]);
  return _mm512_cvtss_f32(acc[0]);
}

[[gnu::target("avx512f,avx512vnni")]] float BytesAvx512() {
  __m512i acc[kAccumulators];
  for (int i = 0; i < kAccumulators; ++i) acc[i] = _mm512_set1_epi32(Seed(i));
  const __m512i a = _mm512_set1_epi32(0x01010101);
  for (int64_t i = 0; i < kIterations; ++i) {
    for (auto& v : acc) v = _mm512_dpbusd_epi32(v, a, a);
  }
  for (int i = 1; i < kAccumulators; ++i) acc[0] = _mm512_add_epi32(acc[0], acc[i]);
  return static_cast<float>(_mm512_cvtsi512_si32(acc[0]));
}

// Multiply-adds count twice.
constexpr double Operations(int multiply_adds_per_step) {
  return 2.0 * multiply_adds_per_step * kAccumulators * static_cast<double>(kIterations);
}

double PeakPerSecond(const PeakKernel& kernel, ThreadPool* pool) {
  const int threads = pool->num_threads();
  volatile float sink = 0;
  const auto start = std::chrono::steady_clock::now();
  pool->ParallelFor(threads, [&](int64_t) { sink = kernel.run(); });
  return kernel.operations_per_call * threads / Seconds(start) * 1e-9;
}

struct Release {
  void operator()(std::byte* p) const { std::free(p); }
};

double ReadPerSecond(const std::byte* memory, ThreadPool* pool) {
  constexpr size_t kTile = kReadBytes / kReadTiles;
  volatile uint64_t sink = 0;
  const auto start = std::chrono::steady_clock::now();
  pool->ParallelFor(kReadTiles, [&](int64_t tile) {
    sink = XorBytes(memory + static_cast<size_t>(tile) * kTile, kTile);
  });
  return static_cast<double>(kReadBytes) / Seconds(start) * 1e-9;
}

double Best(const std::vector<double>& samples) {
  return samples.empty() ? 0.0 : *std::max_element(samples.begin(), samples.end());
}

}  // namespace

CeilingSamples MeasureCeilings(IsaLevel level, int rounds, ThreadPool* pool) {
  const bool wide = level >= IsaLevel::kAvx512;
  const bool has_vnni = wide && __builtin_cpu_supports("avx512vnni");
  const PeakKernel fma =
      wide ? PeakKernel{FmaAvx512, Operations(16)} : PeakKernel{FmaAvx2, Operations(8)};
  const PeakKernel pairs = level >= IsaLevel::kAvx512Bf16 ? PeakKernel{PairsAvx512, Operations(32)}
                                                          : PeakKernel{PairsAvx2, Operations(16)};
  const PeakKernel bytes =
      has_vnni ? PeakKernel{BytesAvx512, Operations(64)} : PeakKernel{BytesAvx2, Operations(32)};
  CeilingSamples samples;
  const std::unique_ptr<std::byte, Release> memory(AllocateLargeMemory(kReadBytes));
  if (memory != nullptr) std::memset(memory.get(), 1, kReadBytes);
  for (int round = 0; round < rounds; ++round) {
    if (memory != nullptr) samples.read_gb_per_s.push_back(ReadPerSecond(memory.get(), pool));
    samples.fp32_gflop_per_s.push_back(PeakPerSecond(fma, pool));
    samples.bf16_gflop_per_s.push_back(PeakPerSecond(pairs, pool));
    samples.int8_gop_per_s.push_back(PeakPerSecond(bytes, pool));
  }
  return samples;
}

Ceilings BestOf(const CeilingSamples& samples) {
  return {Best(samples.read_gb_per_s), Best(samples.fp32_gflop_per_s),
          Best(samples.bf16_gflop_per_s), Best(samples.int8_gop_per_s)};
}

}  // namespace deepinfer
