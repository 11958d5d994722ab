// Mixture of experts of the CPU backend. The (token, expert) pairs of a batch are sorted by expert,
// so that each expert's weights are read once for all its rows; the shared expert comes last, with
// every token. The down projections of all experts are computed output tile by output tile, which
// keeps them in the cache until they are added up in top-k order.

#include <algorithm>

#include "kernels/cpu/cpu_operators.h"
#include "tensor/quantize.h"

namespace deepinfer {

namespace {

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Tokens of one pass: the rows of an expert then fit one linear task.
constexpr int64_t kMaxTokens = kMaxTaskRows;
constexpr int64_t kMaxTile = int64_t{kVectorOutputs} << (kNumLinearWidths - 1);

}  // namespace

struct CpuOperators::MoeBatch {
  int64_t num_tokens = 0;
  bool quantized = false;
  const std::byte* x = nullptr;  // rows in the form of the family
  int64_t x_row_bytes = 0;
  std::span<const ExpertWeights> experts;
  const ExpertWeights* shared = nullptr;
  const int32_t* topk_experts = nullptr;
  const float* topk_weights = nullptr;
};

void CpuOperators::MoeFfn(int64_t num_rows, const float* x, const Fp8Rows& x_fp8,
                          std::span<const ExpertWeights> experts, const ExpertWeights& shared,
                          const int32_t* topk_experts, const float* topk_weights,
                          const MoeShape& shape, float* out) {
  for (int64_t first = 0; first < num_rows; first += kMaxTokens) {
    MoeBatch batch;
    batch.num_tokens = std::min(kMaxTokens, num_rows - first);
    batch.quantized = x_fp8.codes != nullptr;
    if (batch.quantized) {
      const Fp8Rows rows{x_fp8.codes + first * shape.dim, x_fp8.scales + first * (shape.dim / 32)};
      batch.x = ExpandRows(batch.num_tokens, rows, shape.dim);
      batch.x_row_bytes = shape.dim * kernels_.linear.dot_bytes_per_element;
    } else {
      batch.x = reinterpret_cast<const std::byte*>(x + first * shape.dim);
      batch.x_row_bytes = shape.dim * 4;
    }
    batch.experts = experts;
    batch.shared = &shared;
    batch.topk_experts = topk_experts + first * shape.topk;
    batch.topk_weights = topk_weights + first * shape.topk;
    MoeBlock(batch, shape, out + first * shape.dim);
  }
}

void CpuOperators::MoeBlock(const MoeBatch& batch, const MoeShape& shape, float* out) {
  SortByExpert(batch, shape);
  MoeGateUp(batch, shape);
  MoeActivate(batch, shape);
  MoeDown(batch, shape, out);
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

// product_ f32 [pairs, inter] = weight · (silu(gate) · up).
void CpuOperators::MoeGateUp(const MoeBatch& batch, const MoeShape& shape) {
  const int64_t num_pairs = static_cast<int64_t>(pair_token_.size());
  const auto& kernels = batch.quantized ? kernels_.linear.bf16dot : kernels_.linear.f32fma;
  float* product = product_.Get(num_pairs * shape.inter);
  x_rows_.resize(static_cast<size_t>(num_pairs));
  y_rows_.resize(static_cast<size_t>(num_pairs));
  for (int64_t i = 0; i < num_pairs; ++i) {
    x_rows_[static_cast<size_t>(i)] =
        batch.x + pair_token_[static_cast<size_t>(i)] * batch.x_row_bytes;
    y_rows_[static_cast<size_t>(i)] = product + i * shape.inter;
  }
  const int64_t num_experts = static_cast<int64_t>(expert_rows_.size());
  const int width = LinearWidth(CeilDiv(num_pairs, num_experts), num_experts * shape.inter);
  const int64_t tile = int64_t{kVectorOutputs} << width;
  const int64_t tiles = CeilDiv(shape.inter, tile);
  const int64_t work = 2 * num_pairs * shape.inter * shape.dim;
  RunTasks(num_experts * tiles, work, [&](int64_t index) {
    const ExpertRows& expert = expert_rows_[static_cast<size_t>(index / tiles)];
    const int64_t column = index % tiles * tile;
    const int64_t outputs = std::min(tile, shape.inter - column);
    alignas(64) float up[kMaxTaskRows * kMaxTile];
    float* up_rows[kMaxTaskRows];
    for (int64_t m = 0; m < expert.count; ++m) up_rows[m] = up + m * tile;
    LinearTask task;
    task.weight = &expert.weights->up;
    task.first_output = column;
    task.num_outputs = static_cast<int32_t>(outputs);
    task.num_rows = expert.count;
    task.x = x_rows_.data() + expert.first;
    task.y = up_rows;
    kernels[width](task);
    task.weight = &expert.weights->gate;
    task.y = y_rows_.data() + expert.first;
    task.y_column = column;
    kernels[width](task);
    for (int64_t m = 0; m < expert.count; ++m) {
      kernels_.row.swiglu(outputs, pair_weight_[static_cast<size_t>(expert.first + m)],
                          shape.swiglu_limit, up_rows[m], task.y[m] + column);
    }
  });
}

// product_rows_: the products in the form of the family.
void CpuOperators::MoeActivate(const MoeBatch& batch, const MoeShape& shape) {
  const int64_t num_pairs = static_cast<int64_t>(pair_token_.size());
  const int64_t inter = shape.inter;
  const float* product = product_.Get(num_pairs * inter);
  product_rows_.resize(static_cast<size_t>(num_pairs));
  if (!batch.quantized) {
    for (int64_t i = 0; i < num_pairs; ++i) {
      product_rows_[static_cast<size_t>(i)] =
          reinterpret_cast<const std::byte*>(product + i * inter);
    }
    return;
  }
  const int64_t row_bytes = inter * kernels_.linear.dot_bytes_per_element;
  const int64_t code_bytes = inter + inter / 32;
  std::byte* rows = expanded_product_.Get(num_pairs * row_bytes);
  uint8_t* codes = product_codes_.Get(num_pairs * code_bytes);
  RunTasks(num_pairs, num_pairs * inter, [&](int64_t i) {
    uint8_t* row = codes + i * code_bytes;
    QuantizeFp8Group32(product + i * inter, static_cast<int>(inter), row, row + inter);
    kernels_.linear.expand_dot_row(row, row + inter, inter, rows + i * row_bytes);
    product_rows_[static_cast<size_t>(i)] = rows + i * row_bytes;
  });
}

void CpuOperators::MoeDown(const MoeBatch& batch, const MoeShape& shape, float* out) {
  const int64_t num_pairs = static_cast<int64_t>(pair_token_.size());
  const auto& kernels = batch.quantized ? kernels_.linear.bf16dot : kernels_.linear.f32fma;
  const int64_t num_experts = static_cast<int64_t>(expert_rows_.size());
  const int width = LinearWidth(CeilDiv(num_pairs, num_experts), shape.dim);
  const int64_t tile = int64_t{kVectorOutputs} << width;
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
    task.num_outputs = static_cast<int32_t>(std::min(tile, shape.dim - task.first_output));
    for (const ExpertRows& expert : expert_rows_) {
      task.weight = &expert.weights->down;
      task.num_rows = expert.count;
      task.x = product_rows_.data() + expert.first;
      task.y = rows + expert.first;
      kernels[width](task);
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
    }
  });
}

}  // namespace deepinfer
