// Mixture of experts of the CPU backend. The (token, expert) pairs of a batch are sorted by expert,
// so that each expert's weights are read once for all its rows; the shared expert comes last, with
// every token. Two passes: gate, up, activation and quantisation tile by tile of the inner width,
// which is cut at whole blocks of the down projection's K; then the down projections of all experts
// output tile by output tile, which keeps them in the cache until they are added up in top-k order.

#include <algorithm>
#include <atomic>
#include <cstring>

#include "kernels/cpu/cpu_operators.h"

namespace deepinfer {

namespace {

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Tokens of one pass: the rows of an expert then fit one linear task.
constexpr int64_t kMaxTokens = kMaxTaskRows;
// Inner columns of one task.
constexpr int64_t kInnerTile = kDotBlock;
// Results of down projections that wait to be added up, per thread: half of a second-level cache.
constexpr int64_t kMaxPartialFloats = int64_t{64} << 10;

bool HasCodes(const WeightMatrix& w) { return w.format != WeightFormat::kBf16; }

}  // namespace

struct CpuOperators::MoeBatch {
  int64_t num_tokens = 0;
  bool quantized = false;
  // Rows in the form of the family: [0] fp32 or for bf16 weights, [1] for FP8 and FP4 weights.
  const std::byte* x[2] = {};
  int64_t x_row_bytes = 0;
  std::span<const ExpertWeights> experts;
  const ExpertWeights* shared = nullptr;
  const int32_t* topk_experts = nullptr;
  const float* topk_weights = nullptr;
  uint8_t* product_codes = nullptr;  // of every pair: codes [inter], scales [inter/32]

  const std::byte* Row(int64_t token, const WeightMatrix& w) const {
    return x[quantized && HasCodes(w) ? 1 : 0] + token * x_row_bytes;
  }
  uint8_t* ProductCodes(size_t pair, const MoeShape& shape) const {
    return product_codes + static_cast<int64_t>(pair) * (shape.inter + shape.inter / 32);
  }
};

void CpuOperators::MoeFfn(int64_t num_rows, const float* x, const Fp8Rows& x_fp8,
                          std::span<const ExpertWeights> experts, const ExpertWeights& shared,
                          const int32_t* topk_experts, const float* topk_weights,
                          const MoeShape& shape, float* out) {
  for (int64_t first = 0; first < num_rows; first += kMaxTokens) {
    MoeBatch batch;
    batch.num_tokens = std::min(kMaxTokens, num_rows - first);
    batch.quantized = x_fp8.codes != nullptr;
    batch.experts = experts;
    batch.shared = &shared;
    batch.topk_experts = topk_experts + first * shape.topk;
    batch.topk_weights = topk_weights + first * shape.topk;
    SortByExpert(batch, shape);
    if (batch.quantized) {
      MoeExpand({x_fp8.codes + first * shape.dim, x_fp8.scales + first * (shape.dim / 32)}, shape,
                &batch);
      batch.product_codes = product_codes_.Get(static_cast<int64_t>(pair_token_.size()) *
                                               (shape.inter + shape.inter / 32));
    } else {
      batch.x[0] = reinterpret_cast<const std::byte*>(x + first * shape.dim);
      batch.x_row_bytes = shape.dim * 4;
    }
    MoeGateUp(batch, shape);
    MoeDown(batch, shape, out + first * shape.dim);
  }
}

// Rows in the forms that the chosen experts need.
void CpuOperators::MoeExpand(const Fp8Rows& x, const MoeShape& shape, MoeBatch* batch) {
  batch->x_row_bytes = DotRowBytes(shape.dim);
  const int64_t form_bytes = batch->num_tokens * batch->x_row_bytes;
  std::byte* memory = expanded_.Get(2 * form_bytes);
  for (int form = 0; form < 2; ++form) {
    const bool is_needed =
        std::any_of(expert_rows_.begin(), expert_rows_.end(),
                    [=](const ExpertRows& e) { return HasCodes(e.weights->gate) == (form == 1); });
    if (!is_needed) continue;
    std::byte* rows = memory + form * form_bytes;
    batch->x[form] = rows;
    RunTasks(batch->num_tokens, batch->num_tokens * shape.dim, [&](int64_t t) {
      ExpandFp8Row(x.codes + t * shape.dim, x.scales + t * (shape.dim / 32), shape.dim, form == 1,
                   rows + t * batch->x_row_bytes);
    });
  }
}

// Fills expert_rows_ and the pair arrays; tokens of an expert ascend.
void CpuOperators::SortByExpert(const MoeBatch& batch, const MoeShape& shape) {
  const int64_t num_slots = batch.num_tokens * shape.topk;
  const int64_t num_pairs = num_slots + batch.num_tokens;
  std::vector<int64_t> next(batch.experts.size(), 0);
  for (int64_t i = 0; i < num_slots; ++i) ++next[static_cast<size_t>(batch.topk_experts[i])];
  expert_rows_.clear();
  int64_t first = 0;
  for (size_t e = 0; e < next.size(); ++e) {
    const int64_t count = next[e];
    next[e] = first;
    if (count > 0) expert_rows_.push_back({&batch.experts[e], first, count});
    first += count;
  }
  expert_rows_.push_back({batch.shared, first, batch.num_tokens});
  pair_token_.resize(static_cast<size_t>(num_pairs));
  pair_weight_.resize(static_cast<size_t>(num_pairs));
  pair_of_slot_.resize(static_cast<size_t>(num_slots));
  for (int64_t i = 0; i < num_slots; ++i) {
    const int64_t pair = next[static_cast<size_t>(batch.topk_experts[i])]++;
    pair_token_[static_cast<size_t>(pair)] = static_cast<int32_t>(i / shape.topk);
    pair_weight_[static_cast<size_t>(pair)] = batch.topk_weights[i];
    pair_of_slot_[static_cast<size_t>(i)] = static_cast<int32_t>(pair);
  }
  for (int64_t t = 0; t < batch.num_tokens; ++t) {
    pair_token_[static_cast<size_t>(num_slots + t)] = static_cast<int32_t>(t);
    pair_weight_[static_cast<size_t>(num_slots + t)] = 1.0f;
  }
}

// Runs the task with the kernel of the family.
void CpuOperators::MoeLinear(LinearTask task, bool quantized) const {
  const LinearKernels& linear = kernels_.linear;
  if (quantized) return linear.bf16dot(task);
  const int width = task.num_rows <= linear.max_rows_of_64   ? 2
                    : task.num_rows <= linear.max_rows_of_32 ? 1
                                                             : 0;
  const int64_t tile = int64_t{kVectorOutputs} << width;
  const int64_t end = task.first_output + task.num_outputs;
  for (; task.first_output < end; task.first_output += tile, task.y_column += tile) {
    task.num_outputs = std::min(tile, end - task.first_output);
    linear.f32fma[width](task);
  }
}

// product_rows_: weight · (silu(gate) · up) of every pair in the form of the down projection.
void CpuOperators::MoeGateUp(const MoeBatch& batch, const MoeShape& shape) {
  const int64_t num_pairs = static_cast<int64_t>(pair_token_.size());
  const int64_t row_bytes = batch.quantized ? DotRowBytes(shape.inter) : 4 * shape.inter;
  std::byte* rows = expanded_product_.Get(num_pairs * row_bytes);
  x_rows_.resize(static_cast<size_t>(num_pairs));
  product_rows_.resize(static_cast<size_t>(num_pairs));
  for (const ExpertRows& expert : expert_rows_) {
    for (int64_t i = expert.first; i < expert.first + expert.count; ++i) {
      const size_t pair = static_cast<size_t>(i);
      x_rows_[pair] = batch.Row(pair_token_[pair], expert.weights->gate);
      product_rows_[pair] = rows + i * row_bytes;
      if (!batch.quantized) continue;
      const DotRowHeader header{HasCodes(expert.weights->down)};
      std::memcpy(product_rows_[pair], &header, sizeof header);
    }
  }
  const int64_t tiles = CeilDiv(shape.inter, kInnerTile);
  const int64_t work = 2 * num_pairs * shape.inter * shape.dim;
  const int64_t num_tasks = static_cast<int64_t>(expert_rows_.size()) * tiles;
  RunTasks(num_tasks, work, [&](int64_t index) {
    const ExpertRows& expert = expert_rows_[static_cast<size_t>(index / tiles)];
    const int64_t next = index + pool_->num_threads();
    WeightAddress next_weights;
    if (next < num_tasks) {
      const ExpertRows& next_expert = expert_rows_[static_cast<size_t>(next / tiles)];
      next_weights = AddressOf(next_expert.weights->gate, next % tiles * kInnerTile);
    }
    MoeGateUpTile(batch, shape, expert, index % tiles * kInnerTile, next_weights);
  });
  MoeRepairProducts(batch, shape);
}

// Columns from `column` on of the products of one expert; `next` will be read after them.
void CpuOperators::MoeGateUpTile(const MoeBatch& batch, const MoeShape& shape,
                                 const ExpertRows& expert, int64_t column, WeightAddress next) {
  alignas(64) float gate[kMaxTaskRows * kInnerTile];
  alignas(64) float up[kMaxTaskRows * kInnerTile];
  float *gate_rows[kMaxTaskRows], *up_rows[kMaxTaskRows];
  for (int64_t m = 0; m < expert.count; ++m) {
    gate_rows[m] = gate + m * kInnerTile;
    up_rows[m] = up + m * kInnerTile;
  }
  LinearTask task;
  task.first_output = column;
  task.num_outputs = std::min(kInnerTile, shape.inter - column);
  task.num_rows = expert.count;
  task.x = x_rows_.data() + expert.first;
  task.weight = &expert.weights->gate;
  task.next = AddressOf(expert.weights->up, column);
  task.y = gate_rows;
  MoeLinear(task, batch.quantized);
  task.weight = &expert.weights->up;
  task.next = next;
  task.y = up_rows;
  MoeLinear(task, batch.quantized);
  for (int64_t m = 0; m < expert.count; ++m) {
    const size_t pair = static_cast<size_t>(expert.first + m);
    Round(shape.rounding, task.num_outputs, gate_rows[m]);
    Round(shape.rounding, task.num_outputs, up_rows[m]);
    kernels_.row.swiglu(task.num_outputs, pair_weight_[pair], shape.swiglu_limit, up_rows[m],
                        gate_rows[m]);
    if (batch.quantized) {
      MoeQuantize(batch, shape, expert.weights->down, pair, column, task.num_outputs, gate_rows[m]);
    } else {
      std::memcpy(product_rows_[pair] + 4 * column, gate_rows[m],
                  static_cast<size_t>(4 * task.num_outputs));
    }
  }
}

// Columns [column, column + count) of a product row from their fp32 values.
void CpuOperators::MoeQuantize(const MoeBatch& batch, const MoeShape& shape,
                               const WeightMatrix& down, size_t pair, int64_t column, int64_t count,
                               const float* values) {
  uint8_t* codes = batch.ProductCodes(pair, shape) + column;
  uint8_t* scales = batch.ProductCodes(pair, shape) + shape.inter + column / 32;
  kernels_.row.quantize_fp8(values, count, codes, scales);
  std::byte* row = product_rows_[pair];
  std::byte* blocks = row + kDotHeaderBytes + column / kDotBlock * kernels_.linear.dot_block_bytes;
  if (!kernels_.linear.expand_fp8(codes, scales, count, HasCodes(down), blocks)) {
    auto* header = reinterpret_cast<DotRowHeader*>(row);
    std::atomic_ref(header->is_moderate).store(0, std::memory_order_relaxed);
  }
}

// A product with one part that is not moderate is expanded again as a whole.
void CpuOperators::MoeRepairProducts(const MoeBatch& batch, const MoeShape& shape) {
  if (!batch.quantized) return;
  for (const ExpertRows& expert : expert_rows_) {
    if (!HasCodes(expert.weights->down)) continue;
    for (int64_t i = expert.first; i < expert.first + expert.count; ++i) {
      const size_t pair = static_cast<size_t>(i);
      DotRowHeader header;
      std::memcpy(&header, product_rows_[pair], sizeof header);
      if (header.is_moderate != 0) continue;
      const uint8_t* codes = batch.ProductCodes(pair, shape);
      ExpandFp8Row(codes, codes + shape.inter, shape.inter, false, product_rows_[pair]);
    }
  }
}

void CpuOperators::MoeDown(const MoeBatch& batch, const MoeShape& shape, float* out) {
  const int64_t num_pairs = static_cast<int64_t>(pair_token_.size());
  const int64_t most = std::max(kDotOutputUnit, kMaxPartialFloats / num_pairs);
  const int64_t tile = std::min(DotOutputs(shape.dim), most / kDotOutputUnit * kDotOutputUnit);
  const int64_t threads = pool_->num_threads();
  float* partial = slot_floats_.Get(threads * num_pairs * tile);
  y_rows_.resize(static_cast<size_t>(threads * num_pairs));
  for (int64_t i = 0; i < threads * num_pairs; ++i) {
    y_rows_[static_cast<size_t>(i)] = partial + i * tile;
  }
  RunTasksInSlots(CeilDiv(shape.dim, tile), [&](int64_t index, int64_t slot) {
    float* const* rows = y_rows_.data() + slot * num_pairs;
    LinearTask task;
    task.first_output = index * tile;
    task.num_outputs = std::min(tile, shape.dim - task.first_output);
    const int64_t next_output = task.first_output + tile * threads;
    for (size_t e = 0; e < expert_rows_.size(); ++e) {
      const ExpertRows& expert = expert_rows_[e];
      task.weight = &expert.weights->down;
      task.next = WeightAddress();
      if (e + 1 < expert_rows_.size()) {
        task.next = AddressOf(expert_rows_[e + 1].weights->down, task.first_output);
      } else if (next_output < shape.dim) {
        task.next = AddressOf(expert_rows_.front().weights->down, next_output);
      }
      task.num_rows = expert.count;
      task.x = product_rows_.data() + expert.first;
      task.y = rows + expert.first;
      MoeLinear(task, batch.quantized);
      for (int64_t m = 0; m < expert.count; ++m) {
        Round(shape.rounding, task.num_outputs, task.y[m]);
      }
    }
    const int64_t shared_first = num_pairs - batch.num_tokens;
    for (int64_t t = 0; t < batch.num_tokens; ++t) {
      float* sum = out + t * shape.dim + task.first_output;
      std::fill_n(sum, task.num_outputs, 0.0f);
      for (int64_t k = 0; k < shape.topk; ++k) {
        const int32_t pair = pair_of_slot_[static_cast<size_t>(t * shape.topk + k)];
        kernels_.row.add(task.num_outputs, rows[pair], sum);
      }
      kernels_.row.add(task.num_outputs, rows[shared_first + t], sum);
      Round(shape.rounding, task.num_outputs, sum);
    }
  });
}

}  // namespace deepinfer
