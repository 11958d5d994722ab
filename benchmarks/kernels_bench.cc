// Speed of the CPU operators beside the ceilings of the same run: memory reads and multiply-adds.
// usage: kernels_bench [--benchmark_filter=...]
// Names: operator/format/level/threads:T/rows:M. Counters: weight (or cache) bytes and operations
// per second, and the share of the ceiling measured at start with the same number of threads.
#include <benchmark/benchmark.h>
#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/cpu_features.h"
#include "base/thread_pool.h"
#include "kernels/backends.h"
#include "kernels/ops.h"
#include "tensor/codecs.h"
#include "tensor/quantize.h"

namespace deepinfer {
namespace {

// Larger than the last-level cache, so that every call reads its weights from memory.
constexpr int64_t kWeightBytes = int64_t{96} << 20;

double Seconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

// ---- ceilings ----

uint64_t ReadBytes(const std::byte* p, int64_t size) {
  __m256i sum[4] = {};
  for (int64_t i = 0; i < size; i += 128) {
    for (int j = 0; j < 4; ++j) {
      sum[j] = _mm256_xor_si256(
          sum[j], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + i + 32 * j)));
    }
  }
  const __m256i all =
      _mm256_xor_si256(_mm256_xor_si256(sum[0], sum[1]), _mm256_xor_si256(sum[2], sum[3]));
  return static_cast<uint64_t>(_mm256_extract_epi64(all, 0));
}

constexpr int64_t kDotRounds = int64_t{1} << 20;
constexpr int kChains = 16;

// GFLOP of one call, for each of the instructions a level multiplies with.
__attribute__((target("avx512f,avx512bf16"))) double DotRounds(float* out) {
  __m512 acc[kChains];  // different starts, or the chains would be one
  for (int c = 0; c < kChains; ++c) acc[c] = _mm512_set1_ps(out[c]);
  const __m512bh w = (__m512bh)_mm512_set1_epi32(0x3F803F80);
  for (int64_t i = 0; i < kDotRounds; ++i) {
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) acc[c] = _mm512_dpbf16_ps(acc[c], w, w);
  }
  for (int c = 0; c < kChains; ++c) out[c] = _mm512_cvtss_f32(acc[c]);
  return static_cast<double>(kDotRounds) * kChains * 64 * 1e-9;
}
__attribute__((target("avx512f"))) double Fma512Rounds(float* out) {
  __m512 acc[kChains];
  for (int c = 0; c < kChains; ++c) acc[c] = _mm512_set1_ps(out[c]);
  const __m512 w = _mm512_set1_ps(0.5f);
  for (int64_t i = 0; i < kDotRounds; ++i) {
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) acc[c] = _mm512_fmadd_ps(w, w, acc[c]);
  }
  for (int c = 0; c < kChains; ++c) out[c] = _mm512_cvtss_f32(acc[c]);
  return static_cast<double>(kDotRounds) * kChains * 32 * 1e-9;
}
double Fma256Rounds(float* out) {
  constexpr int kFew = 10;  // 16 registers
  __m256 acc[kFew];
  for (int c = 0; c < kFew; ++c) acc[c] = _mm256_set1_ps(out[c]);
  const __m256 w = _mm256_set1_ps(0.5f);
  for (int64_t i = 0; i < kDotRounds; ++i) {
#pragma GCC unroll 16
    for (int c = 0; c < kFew; ++c) acc[c] = _mm256_fmadd_ps(w, w, acc[c]);
  }
  for (int c = 0; c < kFew; ++c) out[c] = _mm256_cvtss_f32(acc[c]);
  return static_cast<double>(kDotRounds) * kFew * 16 * 1e-9;
}

struct Ceilings {
  double gb_per_s = 0;
  std::map<IsaLevel, double> fma_gflops, dot_gflops;
};

double BestGflops(ThreadPool* pool, double (*rounds)(float*)) {
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    std::vector<double> work(static_cast<size_t>(pool->num_threads()));
    const auto start = std::chrono::steady_clock::now();
    pool->ParallelFor(pool->num_threads(), [&](int64_t i) {
      alignas(64) float out[16];
      for (int c = 0; c < 16; ++c) out[c] = static_cast<float>(c);
      work[static_cast<size_t>(i)] = rounds(out);
      benchmark::DoNotOptimize(out);
    });
    const double seconds = Seconds(start);
    double total = 0;
    for (double w : work) total += w;
    best = std::max(best, total / seconds);
  }
  return best;
}

Ceilings Measure(int threads) {
  ThreadPool pool(threads);
  Ceilings c;
  std::vector<std::byte> memory(size_t{256} << 20, std::byte{1});
  constexpr int64_t kPiece = int64_t{1} << 20;
  const int64_t pieces = static_cast<int64_t>(memory.size()) / kPiece;
  for (int round = 0; round < 7; ++round) {
    const auto start = std::chrono::steady_clock::now();
    pool.ParallelFor(pieces, [&](int64_t i) {
      benchmark::DoNotOptimize(ReadBytes(memory.data() + i * kPiece, kPiece));
    });
    c.gb_per_s = std::max(c.gb_per_s, static_cast<double>(memory.size()) * 1e-9 / Seconds(start));
  }
  const IsaLevel best = DetectIsaLevel();
  c.fma_gflops[IsaLevel::kAvx2] = BestGflops(&pool, Fma256Rounds);
  if (best >= IsaLevel::kAvx512) c.fma_gflops[IsaLevel::kAvx512] = BestGflops(&pool, Fma512Rounds);
  c.dot_gflops = c.fma_gflops;
  if (best >= IsaLevel::kAvx512Bf16) {
    c.fma_gflops[IsaLevel::kAvx512Bf16] = c.fma_gflops[IsaLevel::kAvx512];
    c.dot_gflops[IsaLevel::kAvx512Bf16] = BestGflops(&pool, DotRounds);
  }
  return c;
}

const Ceilings& CeilingsOf(int threads) {
  static std::map<int, Ceilings> measured;
  const auto [it, is_new] = measured.try_emplace(threads);
  if (is_new) {
    it->second = Measure(threads);
    std::printf("threads %d: read %.1f GB/s", threads, it->second.gb_per_s);
    for (const auto& [level, gflops] : it->second.dot_gflops) {
      std::printf(", %s fma %.0f, dot %.0f GFLOP/s", std::string(IsaLevelName(level)).c_str(),
                  it->second.fma_gflops.at(level), gflops);
    }
    std::printf("\n");
  }
  return it->second;
}

void Report(benchmark::State& state, double bytes, double flops, double peak_gflops, int threads) {
  using benchmark::Counter;
  const double rounds = static_cast<double>(state.iterations());
  state.counters["GB/s"] = Counter(bytes * rounds * 1e-9, Counter::kIsRate);
  state.counters["GFLOP/s"] = Counter(flops * rounds * 1e-9, Counter::kIsRate);
  state.counters["%read"] =
      Counter(bytes * rounds * 1e-7 / CeilingsOf(threads).gb_per_s, Counter::kIsRate);
  state.counters["%peak"] = Counter(flops * rounds * 1e-7 / peak_gflops, Counter::kIsRate);
}

// ---- operands ----

struct Weight {
  std::vector<uint8_t> data, scales;
  WeightMatrix matrix;
};

Weight MakeWeight(WeightFormat format, int64_t out, int64_t in) {
  Weight w;
  const double bytes_each = format == WeightFormat::kF32          ? 4
                            : format == WeightFormat::kBf16       ? 2
                            : format == WeightFormat::kFp4Group32 ? 0.5
                                                                  : 1;
  w.data.resize(static_cast<size_t>(static_cast<double>(out * in) * bytes_each));
  std::mt19937_64 random(1);
  for (size_t i = 0; i + 8 <= w.data.size(); i += 8) {
    // Exponent bits cut so that no format holds an infinity or NaN.
    const uint64_t bits = random() & 0xBFBFBFBFBFBFBFBFull;
    std::memcpy(&w.data[i], &bits, 8);
  }
  if (format == WeightFormat::kFp8Block32) {
    // As in a checkpoint: values that fill the range of their scale, few of them subnormal.
    for (uint8_t& code : w.data) {
      code = FloatToE4m3((static_cast<float>(code & 0x3F) - 31.5f) * 7.0f);
    }
  }
  if (format == WeightFormat::kFp8Block32)
    w.scales.assign(static_cast<size_t>(out / 32 * in / 32), 120);
  if (format == WeightFormat::kFp4Group32) w.scales.assign(static_cast<size_t>(out * in / 32), 120);
  w.matrix = {format, out, in, w.data.data(), w.scales.data()};
  return w;
}

std::vector<float> Values(int64_t n) {
  std::mt19937 random(2);
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = static_cast<float>(random() >> 8) * 0x1p-23f - 1.0f;
  return v;
}

struct Rows {
  Rows(int64_t rows, int64_t k)
      : values(Values(rows * k)),
        codes(static_cast<size_t>(rows * k)),
        scales(static_cast<size_t>(rows * k / 32)) {
    QuantizeFp8Group32(values.data(), static_cast<int>(rows * k), codes.data(), scales.data());
  }
  Fp8Rows fp8() const { return {codes.data(), scales.data()}; }

  std::vector<float> values;
  std::vector<uint8_t> codes, scales;
};

struct Backend {
  Backend(IsaLevel level, int threads)
      : pool(threads), ops(*std::move(MakeCpuOperators(level, &pool))) {}

  ThreadPool pool;
  std::unique_ptr<Operators> ops;
};

// ---- operators ----

// One linear of a model; `out` = 0: as many outputs as fill kWeightBytes. Smaller weights are laid
// out as often as that, so that every call finds its own in memory.
struct LinearCase {
  const char* name;
  WeightFormat format;
  bool quantized;  // LinearFp8, else LinearF32
  int64_t out, in;
};

void Linear(benchmark::State& state, const LinearCase& c, IsaLevel level, int threads,
            int64_t rows) {
  const Weight block = MakeWeight(c.format, 32, c.in);
  const int64_t row_bytes = static_cast<int64_t>(block.data.size()) / 32;
  const int64_t row_groups = c.format == WeightFormat::kFp4Group32 ? c.in / 32 : 0;
  const int64_t out = c.out > 0 ? c.out : kWeightBytes / row_bytes / 64 * 64;
  const int64_t copies = std::max<int64_t>(1, kWeightBytes / (row_bytes * out));
  const Weight all = MakeWeight(c.format, copies * out, c.in);
  const Rows x(rows, c.in);
  std::vector<float> y(static_cast<size_t>(rows * out));
  const double peak = c.quantized ? CeilingsOf(threads).dot_gflops.at(level)
                                  : CeilingsOf(threads).fma_gflops.at(level);
  Backend backend(level, threads);
  int64_t copy = 0;
  for (auto _ : state) {
    WeightMatrix w = all.matrix;
    w.out_features = out;
    w.data = all.data.data() + copy * out * row_bytes;
    if (c.format == WeightFormat::kFp8Block32) w.scales += copy * (out / 32) * (c.in / 32);
    if (c.format == WeightFormat::kFp4Group32) w.scales += copy * out * row_groups;
    if (c.quantized) {
      backend.ops->LinearFp8(rows, x.fp8(), w, Rounding::kNone, y.data());
    } else {
      backend.ops->LinearF32(rows, x.values.data(), w, y.data());
    }
    copy = (copy + 1) % copies;
    benchmark::ClobberMemory();
  }
  const double bytes = static_cast<double>(all.data.size() + all.scales.size());
  Report(state, bytes / static_cast<double>(copies), 2.0 * static_cast<double>(rows * out * c.in),
         peak, threads);
}

constexpr WeightFormat kFp8 = WeightFormat::kFp8Block32;
constexpr WeightFormat kFp4 = WeightFormat::kFp4Group32;
constexpr LinearCase kLinearCases[] = {
    {"linear_fp8/fp8", kFp8, true, 0, 5120},
    {"linear_fp8/fp4", kFp4, true, 0, 5120},
    {"linear_fp8/bf16", WeightFormat::kBf16, true, 0, 5120},
    {"linear_f32/bf16", WeightFormat::kBf16, false, 0, 5120},
    {"linear_f32/f32", WeightFormat::kF32, false, 0, 5120},
    // The layer shapes of the released model (`slice`) and of the common benchmark model (`mid`).
    {"slice/wq_a", kFp8, true, 1280, 5120},
    {"slice/wq_b", kFp8, true, 32768, 1280},
    {"slice/wkv", kFp8, true, 512, 5120},
    {"slice/wo_b", kFp8, true, 5120, 8192},
    {"slice/index_wq_b", kFp8, true, 4096, 1280},
    {"slice/engram_wkv", kFp8, true, 25600, 6144},
    {"slice/w1", kFp4, true, 2304, 5120},
    {"slice/w2", kFp4, true, 5120, 2304},
    {"slice/shared_w1", kFp8, true, 2304, 5120},
    {"mid/wq_a", kFp8, true, 512, 1024},
    {"mid/wq_b", kFp8, true, 4096, 512},
    {"mid/wo_b", kFp8, true, 1024, 2048},
    {"mid/index_wq_b", kFp8, true, 2048, 512},
    {"mid/engram_wkv", kFp8, true, 5120, 768},
    {"mid/w1", kFp4, true, 512, 1024},
    {"mid/w2", kFp4, true, 1024, 512},
};

// Experts of the released shape, of which every token chooses six.
void Experts(benchmark::State& state, IsaLevel level, int threads, int64_t rows) {
  MoeShape shape;
  shape.dim = 5120;
  shape.inter = 2304;
  shape.num_experts = 16;
  shape.topk = 6;
  shape.swiglu_limit = 10.0f;
  struct Expert {
    Weight gate, up, down;
  };
  const auto make = [&](WeightFormat format) {
    return Expert{MakeWeight(format, shape.inter, shape.dim),
                  MakeWeight(format, shape.inter, shape.dim),
                  MakeWeight(format, shape.dim, shape.inter)};
  };
  std::vector<Expert> owned;
  std::vector<ExpertWeights> experts;
  for (int e = 0; e < shape.num_experts; ++e) owned.push_back(make(WeightFormat::kFp4Group32));
  for (Expert& e : owned) experts.push_back({e.gate.matrix, e.up.matrix, e.down.matrix});
  const Expert shared_owned = make(WeightFormat::kFp8Block32);
  const ExpertWeights shared{shared_owned.gate.matrix, shared_owned.up.matrix,
                             shared_owned.down.matrix};
  const auto bytes_of = [](const Expert& e) {
    double bytes = 0;
    for (const Weight* w : {&e.gate, &e.up, &e.down}) {
      bytes += static_cast<double>(w->data.size() + w->scales.size());
    }
    return bytes;
  };
  std::vector<int32_t> chosen;
  std::vector<bool> used(static_cast<size_t>(shape.num_experts));
  for (int64_t t = 0; t < rows; ++t) {
    for (int32_t k = 0; k < shape.topk; ++k) {
      chosen.push_back(static_cast<int32_t>((5 * t + k) % shape.num_experts));
      used[static_cast<size_t>(chosen.back())] = true;
    }
  }
  double bytes = bytes_of(shared_owned);
  for (size_t e = 0; e < used.size(); ++e) bytes += used[e] ? bytes_of(owned[e]) : 0.0;
  const std::vector<float> weights(chosen.size(), 0.25f);
  const Rows x(rows, shape.dim);
  std::vector<float> y(static_cast<size_t>(rows * shape.dim));
  const double peak = CeilingsOf(threads).dot_gflops.at(level);
  Backend backend(level, threads);
  for (auto _ : state) {
    backend.ops->MoeFfn(rows, nullptr, x.fp8(), experts, shared, chosen.data(), weights.data(),
                        shape, y.data());
    benchmark::ClobberMemory();
  }
  Report(state, bytes, 6.0 * static_cast<double>(rows * (shape.topk + 1) * shape.dim * shape.inter),
         peak, threads);
}

// Heads of 512 channels over a full window and 512 selected entries; kBf16 is the form of prod.
void AttentionStep(benchmark::State& state, Rounding weights, int32_t heads, IsaLevel level,
                   int threads, int64_t rows) {
  constexpr int32_t kWindow = 128, kSelected = 512, kEntries = 16384;
  AttentionShape shape;
  shape.weights = weights;
  shape.num_heads = heads;
  shape.head_dim = 512;
  shape.scale = 0.04419417382415922f;
  Backend backend(level, threads);
  const int64_t window_bytes = WindowRowBytes(shape.format, 512);
  const int64_t entry_bytes = CompressedRowBytes(shape.format, 512);
  std::vector<std::byte> ring(static_cast<size_t>(kWindow * window_bytes));
  backend.ops->StoreWindowRows(kWindow, Values(kWindow * 512).data(), 512, shape.format,
                               ring.data());
  std::vector<std::byte> pool(static_cast<size_t>(kEntries * entry_bytes));
  std::vector<int32_t> table(kEntries / 128);
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i);
  KvPages pages;
  pages.pool = pool.data();
  pages.block_stride = 128 * entry_bytes;
  pages.block_table = table.data();
  pages.entries_per_block = 128;
  pages.main_row_bytes = entry_bytes;
  backend.ops->StoreCompressed(kEntries, Values(int64_t{kEntries} * 512).data(), 512, shape.format,
                               false, 0, pages);
  std::vector<int32_t> selected(kSelected);
  for (int32_t i = 0; i < kSelected; ++i) selected[static_cast<size_t>(i)] = i * 31;
  const int32_t num_selected = kSelected;
  AttentionRow row;
  row.window = {ring.data(), nullptr, kWindow, 1 << 20, window_bytes};
  row.position = 1000;
  row.window_lo = row.position - kWindow + 1;
  row.pages = pages;
  row.selected = selected.data();
  row.num_selected = &num_selected;
  const std::vector<AttentionRow> batch(static_cast<size_t>(rows), row);
  std::vector<float> q = Values(rows * heads * 512);
  for (float& x : q) x = RoundToBf16(x);
  const std::vector<float> sink = Values(heads);
  std::vector<float> o(q.size());
  const double peak = weights == Rounding::kBf16 ? CeilingsOf(threads).dot_gflops.at(level)
                                                 : CeilingsOf(threads).fma_gflops.at(level);
  for (auto _ : state) {
    backend.ops->Attention(batch, q.data(), sink.data(), shape, o.data());
    benchmark::ClobberMemory();
  }
  Report(state, static_cast<double>(rows * (kWindow * window_bytes + kSelected * entry_bytes)),
         4.0 * static_cast<double>(rows * heads * 512) * (kWindow + kSelected), peak, threads);
}

enum class IndexPart { kScores, kTopK, kCandidates };

// One row over a long context: the scan of its keys, 32 heads of 128 channels, or a selection.
void IndexScan(benchmark::State& state, IndexPart part, IsaLevel level, int threads,
               int64_t entries) {
  IndexShape shape;
  shape.topk = 512;
  shape.candidate_block_size = 8;
  shape.candidate_topk_blocks = 2048;
  shape.num_heads = 32;
  shape.head_dim = 128;
  Backend backend(level, threads);
  std::vector<std::byte> pool(static_cast<size_t>(entries * 68));
  std::vector<int32_t> table(static_cast<size_t>(entries / 128));
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i);
  IndexRow row;
  row.pages.pool = pool.data();
  row.pages.block_stride = 128 * 68;
  row.pages.block_table = table.data();
  row.pages.entries_per_block = 128;
  row.pages.index_code_bytes = 64;
  row.pages.index_scale_bytes = 4;
  row.pages.index_scale_offset = 128 * 64;
  row.num_visible = static_cast<int32_t>(entries);
  backend.ops->StoreIndexKeys(entries, Values(entries * 128).data(), 128, shape.format, 0,
                              row.pages);
  std::vector<float> q = Values(32 * 128);
  backend.ops->QdqFp4Group32(32, q.data(), 128);
  const std::vector<float> w = Values(32);
  std::vector<float> scores(static_cast<size_t>(entries));
  const double peak = CeilingsOf(threads).fma_gflops.at(level);
  std::vector<int32_t> selected(2048);
  int32_t num_selected = 0;
  backend.ops->IndexScores({&row, 1}, q.data(), w.data(), shape, entries, scores.data());
  for (auto _ : state) {
    if (part == IndexPart::kScores) {
      backend.ops->IndexScores({&row, 1}, q.data(), w.data(), shape, entries, scores.data());
    } else if (part == IndexPart::kTopK) {
      backend.ops->SelectTopK({&row, 1}, scores.data(), entries, shape, selected.data(),
                              &num_selected);
    } else {
      backend.ops->SelectCandidates({&row, 1}, scores.data(), entries, shape, selected.data(),
                                    &num_selected);
    }
    benchmark::ClobberMemory();
  }
  const bool is_scan = part == IndexPart::kScores;
  Report(state, static_cast<double>(entries * (is_scan ? 68 : 4)),
         is_scan ? 2.0 * static_cast<double>(entries) * 32 * 128 : 0.0, peak, threads);
}

// The mixes of one hyper-connection site of the released width.
void HcSiteStep(benchmark::State& state, IsaLevel level, int threads, int64_t rows) {
  HcShape shape;
  shape.dim = 5120;
  const std::vector<float> fn = Values(24 * 4 * 5120), base = Values(24), scale = Values(3);
  const HcSite site{fn.data(), base.data(), scale.data()};
  const std::vector<float> h = Values(rows * 4 * 5120);
  std::vector<float> pre(static_cast<size_t>(rows * 4)), post(pre.size()), comb(pre.size() * 4);
  const double peak = CeilingsOf(threads).fma_gflops.at(level);
  Backend backend(level, threads);
  for (auto _ : state) {
    backend.ops->HcMixes(rows, h.data(), site, shape, pre.data(), post.data(), comb.data());
    benchmark::ClobberMemory();
  }
  Report(state, static_cast<double>(fn.size() * 4),
         2.0 * static_cast<double>(rows) * static_cast<double>(fn.size()), peak, threads);
}

template <typename Fn>
void Register(const std::string& name, IsaLevel level, int threads, const char* unit, int64_t count,
              Fn fn) {
  const std::string full = name + "/" + std::string(IsaLevelName(level)) +
                           "/threads:" + std::to_string(threads) + "/" + unit + ":" +
                           std::to_string(count);
  benchmark::RegisterBenchmark(full.c_str(), fn)->UseRealTime()->Unit(benchmark::kMicrosecond);
}

void RegisterAll(IsaLevel level, int threads) {
  for (int64_t rows : {1, 2, 4, 8, 16, 64, 256}) {
    for (const LinearCase& c : kLinearCases) {
      Register(c.name, level, threads, "rows", rows,
               [=, &c](benchmark::State& s) { Linear(s, c, level, threads, rows); });
    }
    Register("experts", level, threads, "rows", rows,
             [=](benchmark::State& s) { Experts(s, level, threads, rows); });
    Register("hc_mixes", level, threads, "rows", rows,
             [=](benchmark::State& s) { HcSiteStep(s, level, threads, rows); });
  }
  for (int64_t rows : {1, 4, 16}) {
    for (int32_t heads : {8, 64}) {
      const std::string name = "/heads:" + std::to_string(heads);
      Register("attention/fp32" + name, level, threads, "rows", rows, [=](benchmark::State& s) {
        AttentionStep(s, Rounding::kNone, heads, level, threads, rows);
      });
      Register("attention/bf16" + name, level, threads, "rows", rows, [=](benchmark::State& s) {
        AttentionStep(s, Rounding::kBf16, heads, level, threads, rows);
      });
    }
  }
  for (int64_t entries : {32768, 262144}) {
    Register("index_scores", level, threads, "entries", entries, [=](benchmark::State& s) {
      IndexScan(s, IndexPart::kScores, level, threads, entries);
    });
    Register("select_topk", level, threads, "entries", entries,
             [=](benchmark::State& s) { IndexScan(s, IndexPart::kTopK, level, threads, entries); });
    Register("select_candidates", level, threads, "entries", entries, [=](benchmark::State& s) {
      IndexScan(s, IndexPart::kCandidates, level, threads, entries);
    });
  }
}

}  // namespace
}  // namespace deepinfer

int main(int argc, char** argv) {
  using deepinfer::IsaLevel;
  for (IsaLevel level : {IsaLevel::kAvx2, IsaLevel::kAvx512, IsaLevel::kAvx512Bf16}) {
    if (level > deepinfer::DetectIsaLevel()) continue;
    for (int threads : {1, 2}) deepinfer::RegisterAll(level, threads);
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
