// The CPU backend: splits every hot operator into tasks for the thread pool and runs them with the
// kernels of one instruction-set level. Rows and outputs are split, never the contraction, so
// the bits are those of the reference at every level and number of threads. Operators that are not
// overridden cost little and stay the reference's.
// Thread rule: as Operators. Owns its work memory; borrows the pool and the kernel table.
#pragma once

#include <atomic>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/scratch.h"
#include "kernels/reference/reference_operators.h"

namespace deepinfer {

class CpuOperators final : public ReferenceOperators {
 public:
  CpuOperators(const CpuKernels& kernels, ThreadPool* pool);

  void Embed(int64_t num_rows, const int32_t* ids, const uint16_t* table, int64_t dim,
             float* out) override;
  void Replicate(int64_t num_rows, const float* x, int32_t copies, int64_t dim, float* h) override;
  void RmsNorm(int64_t num_rows, const float* x, const uint16_t* w, int64_t dim, float eps,
               Rounding rounding, float* out) override;
  void HcMixes(int64_t num_rows, const float* h, const HcSite& site, const HcShape& shape,
               float* pre, float* post, float* comb) override;
  void HcPre(int64_t num_rows, const float* h, const float* pre, const HcShape& shape,
             Rounding rounding, float* out) override;
  void HcPost(int64_t num_rows, const float* x, const float* h, const float* post,
              const float* comb, const HcShape& shape, Rounding rounding, float* out) override;
  void HcMean(int64_t num_rows, const float* h, const HcShape& shape, Rounding rounding, float* out,
              int64_t out_stride) override;

  void LinearF32(int64_t num_rows, const float* x, const WeightMatrix& w, float* y) override;
  void GroupedLinearF32(int64_t num_rows, const float* x, const WeightMatrix& w, int32_t num_groups,
                        float* y) override;
  using Operators::LinearFp8;
  void LinearFp8(int64_t num_rows, const Fp8Rows& x, std::span<const LinearOutput> outputs,
                 Rounding rounding) override;
  void GroupedLinearFp8(int64_t num_rows, const Fp8Rows& x, const WeightMatrix& w,
                        int32_t num_groups, float* y) override;
  void LinearBf16(int64_t num_rows, const float* x, const WeightMatrix& w, Rounding rounding,
                  float* y) override;
  void Head(int64_t num_rows, const float* x, const WeightMatrix& w, float* y,
            float* maxima) override;
  void BlockMaxima(int64_t num_rows, const float* x, int64_t cols, float* maxima) override;
  void QuantizeFp8(int64_t num_rows, const float* x, int64_t k, Fp8RowsOut out) override;

  void Rope(int64_t num_rows, float* x, int32_t num_heads, int32_t head_dim,
            const int32_t* positions, const RopeTable& table, bool inverse,
            Rounding rounding) override;
  void StoreWindowRows(int64_t num_rows, const float* x, int64_t n, KvFormat format,
                       std::byte* dst) override;
  void Attention(std::span<const AttentionRow> rows, const float* q, const float* sink,
                 const AttentionShape& shape, float* o) override;

  void CompressPair(int64_t num_rows, const float* kv0, const float* g0, const float* kv1,
                    const float* g1, int64_t n, int64_t in_stride, Rounding rounding,
                    float* latent) override;
  void StoreCompressed(int64_t num_rows, const float* x, int64_t n, KvFormat format,
                       bool fp4_by_reciprocal, int64_t first, const KvPages& pages) override;
  void StoreIndexKeys(int64_t num_rows, const float* x, int64_t n, KvFormat format, int64_t first,
                      const KvPages& pages) override;
  void QdqFp4Group32(int64_t num_rows, float* x, int64_t n) override;
  void IndexScores(std::span<const IndexRow> rows, const float* q, const float* w,
                   const IndexShape& shape, int64_t stride, float* scores) override;
  void SelectCandidates(std::span<const IndexRow> rows, const float* scores, int64_t stride,
                        const IndexShape& shape, int32_t* blocks, int32_t* num_blocks) override;
  void SelectTopK(std::span<const IndexRow> rows, const float* scores, int64_t stride,
                  const IndexShape& shape, int32_t* indices, int32_t* num_indices) override;

  void Route(int64_t num_rows, const float* logits, const float* bias, const float* bias_image,
             const uint8_t* is_image, int32_t num_experts, int32_t topk, float gate_temp,
             float route_scale, int32_t* experts, float* weights) override;
  void MoeFfn(int64_t num_rows, const float* x, const Fp8Rows& x_fp8,
              std::span<const ExpertWeights> experts, const ExpertWeights& shared,
              const int32_t* topk_experts, const float* topk_weights, const MoeShape& shape,
              float* out) override;

  void EngramGather(int64_t num_rows, const int64_t* ids, int32_t num_columns,
                    const WeightMatrix& table, float* out) override;
  void EngramGatherFp8(int64_t num_rows, const int64_t* ids, int32_t num_columns,
                       const WeightMatrix& table, Fp8RowsOut out) override;
  void EngramGate(int64_t num_rows, float* h, const float* kvv, const uint16_t* q_weight,
                  const uint16_t* k_weight, const uint8_t* is_image, const HcShape& shape,
                  Rounding rounding) override;

  void Scale(int64_t count, float factor, float* x) override;
  bool AllFinite(int64_t count, const float* x) override;
  bool ScoresFinite(int64_t count, const float* scores) override;

 private:
  // One expert with the rows that chose it: rows [first, first + count) of the sorted batch.
  struct ExpertRows {
    const ExpertWeights* weights = nullptr;
    int64_t first = 0;
    int64_t count = 0;
  };
  struct MoeBatch;

  // Calls fn(task) for every task: in the caller's thread if all of them together are `work`
  // multiply-adds too small to share.
  template <typename Fn>
  void RunTasks(int64_t num_tasks, int64_t work, Fn&& fn);
  // Calls fn(task, slot), slot < num_threads: tasks of one slot never overlap in time, so a slot
  // can own memory.
  template <typename Fn>
  void RunTasksInSlots(int64_t num_tasks, Fn&& fn);

  // The queries of all rows in integers, in memory valid until the next call.
  const IndexQuery* PrepareQueries(int64_t num_rows, const float* q, const IndexShape& shape);
  // Scores of the entries in slots [begin, begin + kTileKeys) of a row.
  void ScoreTile(const IndexShape& shape, int64_t begin, IndexTask task) const;
  // The k best of count(t) elements of every row t, of which source(t, first, n, out) yields or
  // points to n from `first` on: their places, ascending, in out [num_rows, k].
  template <typename Count, typename Source>
  void SelectBest(int64_t num_rows, int32_t k, Count&& count, Source&& source, int32_t* out,
                  int32_t* num_out);

  void Round(Rounding rounding, int64_t n, float* x) const;

  // Index of the kernel width for tasks over `outputs` outputs of `rows` rows.
  int LinearWidth(int64_t rows, int64_t outputs) const;
  // Outputs of one bf16dot task.
  int64_t DotOutputs(int64_t num_outputs) const;
  // y rows = R(W x_rows_) for every output, `tile` columns a task; x_rows_ comes from SetRows with
  // the same groups.
  template <typename Finish>
  void RunLinear(const LinearKernel& kernel, int64_t tile, std::span<const LinearOutput> outputs,
                 int32_t num_groups, int64_t num_rows, Finish&& finish);
  // x_rows_: part g of every row of x, num_groups parts of part_bytes each, from g · num_rows on.
  void SetRows(int64_t num_rows, int32_t num_groups, const std::byte* x, int64_t part_bytes);
  // The bf16dot family on rows of num_groups parts; expand(i, row) writes the i-th part of all
  // rows, DotRowBytes long.
  template <typename Expand, typename Finish>
  void RunDotLinear(int64_t num_rows, std::span<const LinearOutput> outputs, int32_t num_groups,
                    Expand&& expand, Finish&& finish);
  // LinearBf16 of one weight.
  template <typename Finish>
  void RunBf16Linear(int64_t num_rows, const float* x, const LinearOutput& output, Finish&& finish);
  // Of outputs whose rows are expanded alike.
  void RunFp8Linear(int64_t num_rows, const Fp8Rows& x, std::span<const LinearOutput> outputs,
                    int32_t num_groups, Rounding rounding);
  int64_t DotRowBytes(int64_t k) const;
  // row = k codes, expanded for FP8 and FP4 weights if for_codes, else for bf16 weights.
  void ExpandFp8Row(const uint8_t* codes, const uint8_t* scales, int64_t k, bool for_codes,
                    std::byte* row) const;

  void SortByExpert(const MoeBatch& batch, const MoeShape& shape);
  void MoeExpand(const Fp8Rows& x, const MoeShape& shape, MoeBatch* batch);
  void MoeLinear(LinearTask task, bool quantized) const;
  void MoeGateUp(const MoeBatch& batch, const MoeShape& shape);
  void MoeGateUpTile(const MoeBatch& batch, const MoeShape& shape, const ExpertRows& expert,
                     int64_t column, WeightAddress next);
  void MoeQuantize(const MoeBatch& batch, const MoeShape& shape, const WeightMatrix& down,
                   size_t pair, int64_t column, int64_t count, const float* values);
  void MoeRepairProducts(const MoeBatch& batch, const MoeShape& shape);
  void MoeDown(const MoeBatch& batch, const MoeShape& shape, float* out);

  const CpuKernels& kernels_;
  ThreadPool* pool_;

  Scratch<std::byte> expanded_;
  Scratch<std::byte> expanded_product_;
  Scratch<float> mixes_;
  Scratch<float> slot_floats_;
  Scratch<uint8_t> product_codes_;
  Scratch<std::byte> query_bytes_;
  Scratch<float> best_values_;
  Scratch<int32_t> best_indices_;
  std::vector<IndexQuery> queries_;
  std::vector<int64_t> attention_starts_;
  std::vector<const std::byte*> x_rows_;
  std::vector<float*> y_rows_;
  std::vector<ExpertRows> expert_rows_;
  std::vector<int32_t> pair_token_;    // of every sorted row
  std::vector<float> pair_weight_;     // routing weight of every sorted row
  std::vector<int32_t> pair_of_slot_;  // sorted row of (token, k)
  std::vector<std::byte*> product_rows_;
};

// Where output n of w lies.
WeightAddress AddressOf(const WeightMatrix& w, int64_t n);

// A bf16dot task has a multiple of this many outputs: the rows of one scale block.
inline constexpr int64_t kDotOutputUnit = 32;

// Below this many multiply-adds waking other threads costs more than it saves.
inline constexpr int64_t kMinSharedWork = 1 << 16;

template <typename Fn>
void CpuOperators::RunTasks(int64_t num_tasks, int64_t work, Fn&& fn) {
  if (work < kMinSharedWork) {
    for (int64_t i = 0; i < num_tasks; ++i) fn(i);
  } else {
    pool_->ParallelFor(num_tasks, fn);
  }
}

template <typename Fn>
void CpuOperators::RunTasksInSlots(int64_t num_tasks, Fn&& fn) {
  std::atomic<int64_t> next{0};
  const int64_t threads = pool_->num_threads();
  pool_->ParallelFor(num_tasks < threads ? num_tasks : threads, [&](int64_t slot) {
    for (int64_t i = next.fetch_add(1); i < num_tasks; i = next.fetch_add(1)) fn(i, slot);
  });
}

}  // namespace deepinfer
