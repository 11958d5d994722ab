// Plain loops for every operator, in the order that ops.h fixes: the oracle that other backends
// are compared with, bit for bit, and the base class whose operators they replace one by one.
// Thread rule: as Operators.
#pragma once

#include "kernels/ops.h"

namespace deepinfer {

class ReferenceOperators : public Operators {
 public:
  const char* family_id() const override { return "f32fma+bf16dot"; }

  std::byte* Allocate(int64_t size_bytes) override;
  void Free(std::byte* memory) override;
  void CopyToDevice(void* dst, const void* src, int64_t size_bytes) override;
  bool uses_host_memory() const override { return true; }
  void CopyToHost(void* dst, const void* src, int64_t size_bytes) override;
  void CopyOnDevice(void* dst, const void* src, int64_t size_bytes) override;

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
  void WriteRing(int64_t num_rows, const std::byte* rows, int64_t row_bytes, int64_t first,
                 int32_t ring_rows, std::byte* ring) override;
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
};

}  // namespace deepinfer
