// Norms, hyper-connections and the Engram gate of the CPU backend.

#include "kernels/cpu/cpu_operators.h"

#include <algorithm>
#include <cmath>

#include "kernels/reference/hc_row.h"

namespace deepinfer {

namespace {

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Channels of one elementwise task.
constexpr int64_t kChannelChunk = 2048;
// Mixes of one task over few rows.
constexpr int64_t kFewRowsMixes = 6;

}  // namespace

CpuOperators::CpuOperators(const CpuKernels& kernels, ThreadPool* pool)
    : kernels_(kernels), pool_(pool) {}

void CpuOperators::RmsNorm(int64_t num_rows, const float* x, const uint16_t* w, int64_t dim,
                           float eps, Rounding rounding, float* out) {
  RunTasks(num_rows, num_rows * dim, [&](int64_t t) {
    kernels_.row.rms_norm(x + t * dim, w, dim, eps, out + t * dim);
    Round(rounding, dim, out + t * dim);
  });
}

void CpuOperators::Round(Rounding rounding, int64_t n, float* x) const {
  if (rounding == Rounding::kBf16) kernels_.row.round_bf16(n, x);
}

void CpuOperators::HcMixes(int64_t num_rows, const float* h, const HcSite& site,
                           const HcShape& shape, float* pre, float* post, float* comb) {
  const int64_t n = shape.num_copies;
  const int64_t num_mixes = (2 + n) * n;
  const int64_t width = n * shape.dim;
  float* mixes = mixes_.Get(num_rows * (num_mixes + 1));
  float* squares = mixes + num_rows * num_mixes;
  // Few rows leave the reading of fn as the work; smaller tasks share it out evenly.
  const int64_t task_mixes = num_rows < kHcTaskRows ? kFewRowsMixes : kHcTaskMixes;
  const int64_t mix_tasks = CeilDiv(num_mixes, task_mixes);
  const int64_t row_tasks = CeilDiv(num_rows, kHcTaskRows);
  RunTasks(mix_tasks * row_tasks, num_rows * num_mixes * width, [&](int64_t index) {
    const int64_t first = index / mix_tasks * kHcTaskRows;
    const int64_t mix = index % mix_tasks * task_mixes;
    HcMixTask task;
    task.h = h + first * width;
    task.fn = site.fn + mix * width;
    task.num_rows = std::min<int64_t>(kHcTaskRows, num_rows - first);
    task.num_mixes = std::min(task_mixes, num_mixes - mix);
    task.width = width;
    task.mixes = mixes + first * num_mixes + mix;
    task.mixes_stride = num_mixes;
    task.squares = mix == 0 ? squares + first : nullptr;
    kernels_.row.hc_mixes(task);
  });
  RunTasks(num_rows, num_rows * 16384, [&](int64_t t) {  // the iterations are long chains
    const float r = 1.0f / std::sqrt(squares[t] / static_cast<float>(width) + shape.rms_eps);
    float* m = mixes + t * num_mixes;
    for (int64_t i = 0; i < num_mixes; ++i) m[i] *= r;
    float* row_comb = comb + t * n * n;
    StartHcRow(m, site, shape, pre + t * n, post + t * n, row_comb);
    if (n == 4) {
      kernels_.row.sinkhorn_of_4(shape.sinkhorn_iters, shape.eps, row_comb);
    } else {
      RunSinkhorn(shape, row_comb);
    }
  });
}

void CpuOperators::HcPre(int64_t num_rows, const float* h, const float* pre, const HcShape& shape,
                         Rounding rounding, float* out) {
  const int64_t n = shape.num_copies, dim = shape.dim;
  const int64_t chunks = CeilDiv(dim, kChannelChunk);
  RunTasks(num_rows * chunks, num_rows * n * dim, [&](int64_t index) {
    const int64_t t = index / chunks;
    const int64_t begin = index % chunks * kChannelChunk;
    const int64_t end = std::min(begin + kChannelChunk, dim);
    kernels_.row.hc_pre(h + t * n * dim, pre + t * n, shape.num_copies, dim, begin, end,
                        out + t * dim);
    Round(rounding, end - begin, out + t * dim + begin);
  });
}

void CpuOperators::HcPost(int64_t num_rows, const float* x, const float* h, const float* post,
                          const float* comb, const HcShape& shape, Rounding rounding, float* out) {
  const int64_t n = shape.num_copies, dim = shape.dim;
  const int64_t chunks = CeilDiv(dim, kChannelChunk);
  RunTasks(num_rows * chunks, num_rows * n * n * dim, [&](int64_t index) {
    const int64_t t = index / chunks;
    const int64_t begin = index % chunks * kChannelChunk;
    const int64_t end = std::min(begin + kChannelChunk, dim);
    kernels_.row.hc_post(x + t * dim, h + t * n * dim, post + t * n, comb + t * n * n,
                         shape.num_copies, dim, begin, end, out + t * n * dim);
    for (int64_t k = 0; k < n; ++k) {
      Round(rounding, end - begin, out + (t * n + k) * dim + begin);
    }
  });
}

void CpuOperators::EngramGate(int64_t num_rows, float* h, const float* kvv,
                              const uint16_t* q_weight, const uint16_t* k_weight,
                              const uint8_t* is_image, const HcShape& shape, Rounding rounding) {
  const int64_t n = shape.num_copies, dim = shape.dim;
  RunTasks(num_rows * n, num_rows * n * dim, [&](int64_t index) {
    const int64_t t = index / n, c = index % n;
    if (is_image[t] != 0) return;
    const float* row = kvv + t * (n + 1) * dim;
    kernels_.row.engram_gate(row + c * dim, row + n * dim, q_weight + c * dim, k_weight + c * dim,
                             dim, shape.rms_eps, h + index * dim);
    Round(rounding, dim, h + index * dim);
  });
}

}  // namespace deepinfer
