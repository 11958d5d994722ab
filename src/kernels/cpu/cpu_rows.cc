// Operators of the CPU backend that work on one row at a time: embedding, rotation, stored rows,
// routing, Engram tables and finite checks. Most run the reference's row, which the compiler
// vectorises, on all threads.

#include <algorithm>
#include <atomic>
#include <cmath>

#include "kernels/cpu/cpu_operators.h"

namespace deepinfer {

namespace {

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Work of one element, in multiply-adds, where it is more than one (RunTasks).
constexpr int64_t kQuantizeWork = 8;
constexpr int64_t kExponentialWork = 32;
constexpr int64_t kGatherWork = 16;  // a table row is a cache miss, often a page fault
// Values that one task checks.
constexpr int64_t kCheckChunk = int64_t{1} << 15;

// More experts a token than any model chooses; beyond it the reference sorts.
constexpr int32_t kMaxRoutedExperts = 32;

// Channels of the widest rotation whose factors are kept in registers' reach.
constexpr int32_t kMaxRotaryDim = 256;

// The topk experts of the largest biased scores, descending, ties to the lower expert. A NaN counts
// as -infinity.
void ChooseExperts(const float* scores, const float* bias, int32_t num_experts, int32_t topk,
                   int32_t* chosen) {
  float keys[kMaxRoutedExperts];
  int32_t count = 0;
  for (int32_t e = 0; e < num_experts; ++e) {
    const float biased = scores[e] + bias[e];
    const float key = std::isnan(biased) ? -INFINITY : biased;
    if (count == topk && !(key > keys[count - 1])) continue;
    int32_t place = count < topk ? count++ : topk - 1;
    for (; place > 0 && key > keys[place - 1]; --place) {
      keys[place] = keys[place - 1];
      chosen[place] = chosen[place - 1];
    }
    keys[place] = key;
    chosen[place] = e;
  }
}

// Asks for all rows of a token before the first is read.
void PrefetchTableRows(const int64_t* ids, int32_t count, const WeightMatrix& table) {
  const int64_t width = table.in_features;
  const std::byte* data = static_cast<const std::byte*>(table.data);
  for (int32_t i = 0; i < count; ++i) {
    const std::byte* row = data + ids[i] * width;
    for (int64_t byte = 0; byte < width; byte += 64) __builtin_prefetch(row + byte);
    __builtin_prefetch(table.scales + ids[i] * (width / 32));
  }
}

}  // namespace

void CpuOperators::Embed(int64_t num_rows, const int32_t* ids, const uint16_t* table, int64_t dim,
                         float* out) {
  RunTasks(num_rows, num_rows * dim,
           [&](int64_t t) { ReferenceOperators::Embed(1, ids + t, table, dim, out + t * dim); });
}

void CpuOperators::Replicate(int64_t num_rows, const float* x, int32_t copies, int64_t dim,
                             float* h) {
  RunTasks(num_rows, num_rows * copies * dim, [&](int64_t t) {
    ReferenceOperators::Replicate(1, x + t * dim, copies, dim, h + t * copies * dim);
  });
}

void CpuOperators::HcMean(int64_t num_rows, const float* h, const HcShape& shape, Rounding rounding,
                          float* out, int64_t out_stride) {
  const int64_t row = shape.num_copies * shape.dim;
  RunTasks(num_rows, num_rows * row, [&](int64_t t) {
    ReferenceOperators::HcMean(1, h + t * row, shape, rounding, out + t * out_stride, out_stride);
  });
}

void CpuOperators::Rope(int64_t num_rows, float* x, int32_t num_heads, int32_t head_dim,
                        const int32_t* positions, const RopeTable& table, bool inverse,
                        Rounding rounding) {
  const int32_t n = table.rotary_dim, half = n / 2;
  RunTasks(num_rows, num_rows * num_heads * n, [&](int64_t t) {
    float* row = x + t * num_heads * head_dim;
    if (n > kMaxRotaryDim) {
      ReferenceOperators::Rope(1, row, num_heads, head_dim, positions + t, table, inverse,
                               rounding);
      return;
    }
    alignas(64) float cos[kMaxRotaryDim], sin[kMaxRotaryDim];
    for (int32_t i = 0; i < half; ++i) {
      const int64_t entry = int64_t{positions[t]} * half + i;
      const float s = inverse ? -table.sin[entry] : table.sin[entry];
      cos[2 * i] = cos[2 * i + 1] = table.cos[entry];
      sin[2 * i] = -s;
      sin[2 * i + 1] = s;
    }
    for (int32_t head = 0; head < num_heads; ++head) {
      kernels_.row.rotate(cos, sin, n, rounding == Rounding::kBf16,
                          row + int64_t{head + 1} * head_dim - n);
    }
  });
}

void CpuOperators::StoreWindowRows(int64_t num_rows, const float* x, int64_t n, KvFormat format,
                                   std::byte* dst) {
  if (format != KvFormat::kQuantized) {
    return ReferenceOperators::StoreWindowRows(num_rows, x, n, format, dst);
  }
  RunTasks(num_rows, num_rows * n, [&](int64_t t) {
    auto* codes = reinterpret_cast<uint8_t*>(dst + t * WindowRowBytes(format, n));
    kernels_.row.quantize_fp8(x + t * n, n, codes, codes + n);
  });
}

void CpuOperators::CompressPair(int64_t num_rows, const float* kv0, const float* g0,
                                const float* kv1, const float* g1, int64_t n, int64_t in_stride,
                                Rounding rounding, float* latent) {
  RunTasks(num_rows, num_rows * n * kExponentialWork, [&](int64_t t) {
    const int64_t in = t * in_stride;
    kernels_.row.compress_pair(kv0 + in, g0 + in, kv1 + in, g1 + in, n, latent + t * n);
    Round(rounding, n, latent + t * n);
  });
}

void CpuOperators::StoreCompressed(int64_t num_rows, const float* x, int64_t n, KvFormat format,
                                   bool fp4_by_reciprocal, int64_t first, const KvPages& pages) {
  RunTasks(num_rows, num_rows * n * kQuantizeWork, [&](int64_t t) {
    ReferenceOperators::StoreCompressed(1, x + t * n, n, format, fp4_by_reciprocal, first + t,
                                        pages);
  });
}

void CpuOperators::StoreIndexKeys(int64_t num_rows, const float* x, int64_t n, KvFormat format,
                                  int64_t first, const KvPages& pages) {
  RunTasks(num_rows, num_rows * n * kQuantizeWork, [&](int64_t t) {
    ReferenceOperators::StoreIndexKeys(1, x + t * n, n, format, first + t, pages);
  });
}

void CpuOperators::QdqFp4Group32(int64_t num_rows, float* x, int64_t n) {
  RunTasks(num_rows, num_rows * n * kQuantizeWork,
           [&](int64_t t) { ReferenceOperators::QdqFp4Group32(1, x + t * n, n); });
}

void CpuOperators::Route(int64_t num_rows, const float* logits, const float* bias,
                         const float* bias_image, const uint8_t* is_image, int32_t num_experts,
                         int32_t topk, float gate_temp, float route_scale, int32_t* experts,
                         float* weights) {
  if (topk > kMaxRoutedExperts || topk > num_experts) {
    return ReferenceOperators::Route(num_rows, logits, bias, bias_image, is_image, num_experts,
                                     topk, gate_temp, route_scale, experts, weights);
  }
  float* all_scores = slot_floats_.Get(num_rows * num_experts);
  RunTasks(num_rows, num_rows * num_experts * kExponentialWork, [&](int64_t t) {
    float* scores = all_scores + t * num_experts;
    kernels_.row.route_scores(logits + t * num_experts, num_experts, gate_temp, scores);
    int32_t* chosen = experts + t * topk;
    ChooseExperts(scores, is_image[t] != 0 ? bias_image : bias, num_experts, topk, chosen);
    float sum = 0.0f;
    for (int32_t k = 0; k < topk; ++k) sum += scores[chosen[k]];
    for (int32_t k = 0; k < topk; ++k) {
      weights[t * topk + k] = scores[chosen[k]] / (sum + 1e-20f) * route_scale;
    }
  });
}

void CpuOperators::EngramGather(int64_t num_rows, const int64_t* ids, int32_t num_columns,
                                const WeightMatrix& table, float* out) {
  const int64_t width = num_columns * table.in_features;
  RunTasks(num_rows, num_rows * width * kGatherWork, [&](int64_t t) {
    const int64_t* row_ids = ids + t * num_columns;
    if (table.format == WeightFormat::kFp8Group32) PrefetchTableRows(row_ids, num_columns, table);
    ReferenceOperators::EngramGather(1, row_ids, num_columns, table, out + t * width);
  });
}

void CpuOperators::EngramGatherFp8(int64_t num_rows, const int64_t* ids, int32_t num_columns,
                                   const WeightMatrix& table, Fp8RowsOut out) {
  const int64_t width = num_columns * table.in_features;
  RunTasks(num_rows, num_rows * width * kGatherWork, [&](int64_t t) {
    const int64_t* row_ids = ids + t * num_columns;
    PrefetchTableRows(row_ids, num_columns, table);
    const Fp8RowsOut row{out.codes + t * width, out.scales + t * (width / 32)};
    ReferenceOperators::EngramGatherFp8(1, row_ids, num_columns, table, row);
  });
}

void CpuOperators::Scale(int64_t count, float factor, float* x) {
  RunTasks(CeilDiv(count, kCheckChunk), count, [&](int64_t i) {
    const int64_t begin = i * kCheckChunk;
    ReferenceOperators::Scale(std::min(kCheckChunk, count - begin), factor, x + begin);
  });
}

bool CpuOperators::AllFinite(int64_t count, const float* x) {
  std::atomic<bool> finite{true};
  RunTasks(CeilDiv(count, kCheckChunk), count, [&](int64_t i) {
    const int64_t begin = i * kCheckChunk;
    if (!kernels_.row.all_finite(std::min(kCheckChunk, count - begin), x + begin)) finite = false;
  });
  return finite;
}

bool CpuOperators::ScoresFinite(int64_t count, const float* scores) {
  std::atomic<bool> finite{true};
  RunTasks(CeilDiv(count, kCheckChunk), count, [&](int64_t i) {
    const int64_t begin = i * kCheckChunk;
    const int64_t n = std::min(kCheckChunk, count - begin);
    if (!ReferenceOperators::ScoresFinite(n, scores + begin)) finite = false;
  });
  return finite;
}

}  // namespace deepinfer
