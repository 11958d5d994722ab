// The one list of operators. A backend is one implementation of Operators: the plain reference
// (kernels/reference), the CPU kernels (kernels/cpu) and, later, accelerators. The model calls
// nothing else, never dereferences a pointer it got from Allocate, and so runs on any of them.
//
// Contracts shared by all operators (numerics.md §7):
// * T rows ("num_rows") are independent: a row's result depends on its own inputs only, never on
//   T, its place in the batch, thread, tile or alignment. T = 0 is legal and does nothing.
// * SeqK, linears of the f32fma family: K is cut into segments of 512; inside a segment one fp32
//   accumulator per output starts from 0 and walks k upwards; segment sums are added in ascending
//   order.
// * Lane16 pairs, linears of the bf16dot family: K is filled up with zeros to blocks of 128. Lane
//   j of 16 takes k = 8j..8j+7 of a block: t starts from 0 and for q = 0..3 takes the product of
//   k = 8j+4+q, then that of k = 8j+q, by fma with the codes of the weight; the lane continues with
//   fma(t, scale, lane). Then lanes are added at distance 8, 4, 2, 1. Denormal operands and results
//   count as zero throughout.
// * Lane16, all reductions: 16 partial sums, lane j takes k = j (mod 16) in ascending order with
//   fma; then lanes are added pairwise at distance 8, 4, 2, 1.
// * fp32 arithmetic, no contraction, denormals kept, except in the bf16dot family.
// * Rounding says whether results are rounded to bf16 after the last fp32 operation. Rounded
//   values stay in fp32 arrays, so one set of operators serves every mode (numerics.md §2).
// Arrays are dense and row-major; "f32 [a, b]" gives dtype and shape. Inputs and outputs must not
// overlap unless the operator says "in place".
//
// Thread rule: called by one thread at a time (the step thread); work is spread over the
// backend's own pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/cpu_features.h"
#include "base/thread_pool.h"
#include "kernels/kv_view.h"

namespace deepinfer {

// Stored form of a weight matrix W [out, in] (model.md §11.6).
enum class WeightFormat : uint8_t {
  kF32,         // fp32
  kBf16,        // bf16
  kFp8Block32,  // E4M3 [out, in], UE8M0 scale [ceil(out/32), ceil(in/32)]
  kFp8Group32,  // E4M3 [out, in], UE8M0 scale [out, in/32]; Engram tables only
  kFp4Group32,  // E2M1 pairs [out, in/2], UE8M0 scale [out, in/32]
};

// R(x) of model.md §1: how an operator leaves its results.
enum class Rounding : uint8_t {
  kNone,  // fp32 as computed
  kBf16,  // nearest even bf16 value, denormals kept, a NaN stays a NaN
};

// A borrowed weight matrix; y = W x.
struct WeightMatrix {
  WeightFormat format = WeightFormat::kF32;
  int64_t out_features = 0;
  int64_t in_features = 0;
  const void* data = nullptr;
  const uint8_t* scales = nullptr;  // nullptr for kF32, kBf16
};

// One of several linears over the same rows: y f32 [T, out_features].
struct LinearOutput {
  const WeightMatrix* weight = nullptr;
  float* y = nullptr;
};

// Activation rows in FP8, from QuantizeFp8 or a stored table: codes E4M3 [T, K], scales UE8M0 [T,
// K/32].
struct Fp8Rows {
  const uint8_t* codes = nullptr;
  const uint8_t* scales = nullptr;
};
struct Fp8RowsOut {
  uint8_t* codes = nullptr;
  uint8_t* scales = nullptr;
  operator Fp8Rows() const { return {codes, scales}; }
};

// Cosine and sine of every position: f32 [max_positions, rotary_dim/2] each (model.md §6.1).
struct RopeTable {
  const float* cos = nullptr;
  const float* sin = nullptr;
  int32_t rotary_dim = 0;
  int32_t max_positions = 0;
};

// Constants of a hyper-connection site and its weights (model.md §5).
struct HcSite {
  const float* fn = nullptr;     // f32 [(2 + n)·n, n·dim], n = num_copies
  const float* base = nullptr;   // f32 [(2 + n)·n]
  const float* scale = nullptr;  // f32 [3]
};
struct HcShape {
  int32_t num_copies = 4;
  int64_t dim = 0;
  int32_t sinkhorn_iters = 20;
  float eps = 1e-6f;
  float rms_eps = 1e-20f;
};

// One query row of attention: where its keys are.
struct AttentionRow {
  WindowRows window;
  int32_t position = 0;
  int32_t window_lo = 0;  // lowest readable window position; > position means no window key
  KvPages pages;          // pool == nullptr: no compressed keys
  const int32_t* selected = nullptr;      // ascending entry indices
  const int32_t* num_selected = nullptr;  // their number, one value
};
struct AttentionShape {
  KvFormat format = KvFormat::kQuantized;
  int32_t num_heads = 0;
  int32_t head_dim = 0;
  float scale = 0.0f;  // head_dim^-0.5
  // kBf16: the softmax weights that multiply the values are rounded, relative to the running
  // maximum of their tile; the sums of the denominator stay fp32. q must then be bf16 values.
  Rounding weights = Rounding::kNone;

  // Whether both products are of the bf16dot family: all operands are exact in bf16.
  bool is_bf16dot() const { return weights == Rounding::kBf16 && format == KvFormat::kQuantized; }
};

// One query row of the indexer.
struct IndexRow {
  KvPages pages;
  int32_t num_visible = 0;                        // entries [0, num_visible) may be scored
  const int32_t* candidate_blocks = nullptr;      // ascending kept blocks, or nullptr: all entries
  const int32_t* num_candidate_blocks = nullptr;  // their number, one value
};
struct IndexShape {
  KvFormat format = KvFormat::kQuantized;
  int32_t num_heads = 0;
  int32_t head_dim = 0;
  int32_t candidate_block_size = 0;
  int32_t topk = 0;
  int32_t candidate_topk_blocks = 0;
};

// Weights of one gated feed-forward expert.
struct ExpertWeights {
  WeightMatrix gate;  // w1 [inter, dim]
  WeightMatrix up;    // w3 [inter, dim]
  WeightMatrix down;  // w2 [dim, inter]
};
struct MoeShape {
  int64_t dim = 0;
  int64_t inter = 0;
  int32_t num_experts = 0;
  int32_t topk = 0;
  float swiglu_limit = 0.0f;
  // Of w1·x, w3·x, every expert's row and out; the SwiGLU product and the sum over experts are
  // fp32 before (model.md §9).
  Rounding rounding = Rounding::kNone;
};

// Columns of one of Operators::BlockMaxima.
inline constexpr int64_t kMaximaBlock = 32;
constexpr int64_t NumMaxima(int64_t cols) { return (cols + kMaximaBlock - 1) / kMaximaBlock; }

class Operators {
 public:
  virtual ~Operators() = default;

  // Kernel-family part of the numerics id, for example "f32fma+bf16dot".
  virtual const char* family_id() const = 0;

  // Device memory, 64-byte aligned. nullptr when it is exhausted.
  virtual std::byte* Allocate(int64_t size_bytes) = 0;
  virtual void Free(std::byte* memory) = 0;
  virtual void CopyToDevice(void* dst, const void* src, int64_t size_bytes) = 0;
  // Whether operands may lie in any memory of the host.
  virtual bool uses_host_memory() const = 0;
  virtual void CopyToHost(void* dst, const void* src, int64_t size_bytes) = 0;

  virtual void CopyOnDevice(void* dst, const void* src, int64_t size_bytes) = 0;

  // ---- embedding, norms, residual stream ----

  // out f32 [T, dim] = rows ids[t] of table bf16 [vocab, dim].
  virtual void Embed(int64_t num_rows, const int32_t* ids, const uint16_t* table, int64_t dim,
                     float* out) = 0;

  // h f32 [T, copies, dim]: x f32 [T, dim] in every copy (model.md §4).
  virtual void Replicate(int64_t num_rows, const float* x, int32_t copies, int64_t dim,
                         float* h) = 0;

  // out f32 [T, dim] = R(w · (x · 1/sqrt(mean(x²) + eps))), one fp32 rounding per product; w bf16
  // [dim]. In place allowed.
  virtual void RmsNorm(int64_t num_rows, const float* x, const uint16_t* w, int64_t dim, float eps,
                       Rounding rounding, float* out) = 0;

  // h f32 [T, n, dim] -> pre f32 [T, n], post f32 [T, n], comb f32 [T, n, n] (model.md §5).
  virtual void HcMixes(int64_t num_rows, const float* h, const HcSite& site, const HcShape& shape,
                       float* pre, float* post, float* comb) = 0;

  // out f32 [T, dim] = R(sum over copies, ascending, of pre[c]·h[c]).
  virtual void HcPre(int64_t num_rows, const float* h, const float* pre, const HcShape& shape,
                     Rounding rounding, float* out) = 0;

  // out f32 [T, n, dim]: out[k] = R(post[k]·x + sum over j ascending of comb[j, k]·h[j]).
  virtual void HcPost(int64_t num_rows, const float* x, const float* h, const float* post,
                      const float* comb, const HcShape& shape, Rounding rounding, float* out) = 0;

  // out[t · out_stride + i] = R(mean over copies of h f32 [T, n, dim]), i < dim; DSpark's record.
  virtual void HcMean(int64_t num_rows, const float* h, const HcShape& shape, Rounding rounding,
                      float* out, int64_t out_stride) = 0;

  // ---- linears ----

  // y f32 [T, out] = W x, x f32 [T, in]; family f32fma.
  virtual void LinearF32(int64_t num_rows, const float* x, const WeightMatrix& w, float* y) = 0;

  // Group g of W [groups·n, in] applies to columns [g·in, (g+1)·in) of x f32 [T, groups·in];
  // y f32 [T, groups·n]; family f32fma.
  virtual void GroupedLinearF32(int64_t num_rows, const float* x, const WeightMatrix& w,
                                int32_t num_groups, float* y) = 0;

  // y f32 [T, out] = R(W x) with quantised rows, for every weight that takes the same rows; family
  // bf16dot. Weights are kFp8Block32, kFp4Group32 or kBf16, in the same multiple of 32.
  virtual void LinearFp8(int64_t num_rows, const Fp8Rows& x, std::span<const LinearOutput> outputs,
                         Rounding rounding) = 0;
  void LinearFp8(int64_t num_rows, const Fp8Rows& x, const WeightMatrix& w, Rounding rounding,
                 float* y) {
    const LinearOutput output{&w, y};
    LinearFp8(num_rows, x, {&output, 1}, rounding);
  }

  // y f32 [T, groups·n]: GroupedLinearF32 on quantised rows of groups·in elements; family bf16dot,
  // w and in as in LinearFp8.
  virtual void GroupedLinearFp8(int64_t num_rows, const Fp8Rows& x, const WeightMatrix& w,
                                int32_t num_groups, float* y) = 0;

  // y f32 [T, out] = R(W x), x f32 [T, in] holding bf16 values; family bf16dot. w is kBf16, or as
  // in LinearFp8.
  virtual void LinearBf16(int64_t num_rows, const float* x, const WeightMatrix& w,
                          Rounding rounding, float* y) = 0;

  // Logits y f32 [T, out] = W x as LinearBf16 without rounding, with their BlockMaxima, taken while
  // each part of them is in the cache.
  virtual void Head(int64_t num_rows, const float* x, const WeightMatrix& w, float* y,
                    float* maxima) = 0;

  // maxima f32 [T, NumMaxima(cols)]: the largest of every kMaximaBlock columns of x f32 [T, cols],
  // NaN where one of them is NaN or infinite.
  virtual void BlockMaxima(int64_t num_rows, const float* x, int64_t cols, float* maxima) = 0;

  // Codes and scales of x f32 [T, k], groups of 32 (model.md §11.2).
  virtual void QuantizeFp8(int64_t num_rows, const float* x, int64_t k, Fp8RowsOut out) = 0;

  // ---- attention ----

  // Rotates the last rotary_dim channels of every head of x f32 [T, heads, head_dim] at
  // positions[t]; inverse = conjugate. The rotated channels are rounded. In place.
  virtual void Rope(int64_t num_rows, float* x, int32_t num_heads, int32_t head_dim,
                    const int32_t* positions, const RopeTable& table, bool inverse,
                    Rounding rounding) = 0;

  // Writes window rows x f32 [T, n] in their stored form to dst [T, WindowRowBytes].
  virtual void StoreWindowRows(int64_t num_rows, const float* x, int64_t n, KvFormat format,
                               std::byte* dst) = 0;

  // Copies num_rows stored rows of positions first, first+1, ... into a ring.
  virtual void WriteRing(int64_t num_rows, const std::byte* rows, int64_t row_bytes, int64_t first,
                         int32_t ring_rows, std::byte* ring) = 0;

  // o f32 [T, heads, head_dim] for q of the same shape (model.md §6). Keys: window positions
  // ascending, then selected entries ascending. Tiles end at absolute positions divisible by 64
  // and every 64 list entries; online softmax over tiles, Lane16 scores and sums, weighted values
  // added over keys ascending, sink in the denominator, one final division. No key: zeros.
  // bf16dot: Lane16 pairs for the scores, values added in pairs of keys (docs/numerics.md §7).
  virtual void Attention(std::span<const AttentionRow> rows, const float* q, const float* sink,
                         const AttentionShape& shape, float* o) = 0;

  // ---- compressor and indexer ----

  // Ratio-2 pooling: latent f32 [T, n] = R(softmax over the two gates g0, g1, per channel, applied
  // to kv0, kv1); these are f32 [T, n] with rows in_stride floats apart (model.md §7).
  virtual void CompressPair(int64_t num_rows, const float* kv0, const float* g0, const float* kv1,
                            const float* g1, int64_t n, int64_t in_stride, Rounding rounding,
                            float* latent) = 0;

  // Stores compressed entries x f32 [T, n] as entries first, first+1, ... of the pages.
  // fp4_by_reciprocal: codes from x · fp32(1/scale) instead of x / scale (model.md §11.4).
  virtual void StoreCompressed(int64_t num_rows, const float* x, int64_t n, KvFormat format,
                               bool fp4_by_reciprocal, int64_t first, const KvPages& pages) = 0;

  // Stores index keys x f32 [T, n] likewise.
  virtual void StoreIndexKeys(int64_t num_rows, const float* x, int64_t n, KvFormat format,
                              int64_t first, const KvPages& pages) = 0;

  // FP4 group-32 quantise-dequantise of x f32 [T, n]. In place.
  virtual void QdqFp4Group32(int64_t num_rows, float* x, int64_t n) = 0;

  // scores f32 [T, stride]: score[j] = sum over heads ascending of relu(q_h · k_j) · w_h for
  // visible (and, with candidates, kept) entries, -inf elsewhere below stride. q f32
  // [T, heads, head_dim] already quantised and dequantised, w f32 [T, heads] (model.md §8).
  virtual void IndexScores(std::span<const IndexRow> rows, const float* q, const float* w,
                           const IndexShape& shape, int64_t stride, float* scores) = 0;

  // Level 1: kept candidate blocks of each row, ascending, i32 [T, candidate_topk_blocks] and
  // their number i32 [T].
  virtual void SelectCandidates(std::span<const IndexRow> rows, const float* scores, int64_t stride,
                                const IndexShape& shape, int32_t* blocks, int32_t* num_blocks) = 0;

  // The topk best entries of each row, ascending, i32 [T, topk] and their number i32 [T]; ties to
  // the lower index; -inf and NaN are never taken.
  virtual void SelectTopK(std::span<const IndexRow> rows, const float* scores, int64_t stride,
                          const IndexShape& shape, int32_t* indices, int32_t* num_indices) = 0;

  // ---- mixture of experts ----

  // Router (model.md §9): logits f32 [T, experts] -> experts i32 [T, topk] by descending biased
  // score, weights f32 [T, topk]. is_image u8 [T] chooses bias_image.
  virtual void Route(int64_t num_rows, const float* logits, const float* bias,
                     const float* bias_image, const uint8_t* is_image, int32_t num_experts,
                     int32_t topk, float gate_temp, float route_scale, int32_t* experts,
                     float* weights) = 0;

  // out f32 [T, dim] = experts in top-k order, then the shared expert. Either x_fp8 (codes set:
  // bf16dot family, the SwiGLU product quantised before w2) or x f32 [T, dim] (f32fma).
  virtual void MoeFfn(int64_t num_rows, const float* x, const Fp8Rows& x_fp8,
                      std::span<const ExpertWeights> experts, const ExpertWeights& shared,
                      const int32_t* topk_experts, const float* topk_weights, const MoeShape& shape,
                      float* out) = 0;

  // ---- Engram ----

  // out f32 [T, columns·width]: rows ids i64 [T, columns] of table [rows, width], dequantised and
  // concatenated.
  virtual void EngramGather(int64_t num_rows, const int64_t* ids, int32_t num_columns,
                            const WeightMatrix& table, float* out) = 0;

  // The same rows of a kFp8Group32 table as FP8 rows of columns·width elements: the stored bytes.
  virtual void EngramGatherFp8(int64_t num_rows, const int64_t* ids, int32_t num_columns,
                               const WeightMatrix& table, Fp8RowsOut out) = 0;

  // h f32 [T, n, dim] = R(h + gate · value), gates per copy from kvv f32 [T, (n+1)·dim] (model.md
  // §10.3); rows with is_image != 0 stay. q_weight, k_weight bf16 [n, dim]. In place.
  virtual void EngramGate(int64_t num_rows, float* h, const float* kvv, const uint16_t* q_weight,
                          const uint16_t* k_weight, const uint8_t* is_image, const HcShape& shape,
                          Rounding rounding) = 0;

  // x f32 [count] *= factor. In place.
  virtual void Scale(int64_t count, float factor, float* x) = 0;

  // True when every value of x f32 [count] is finite.
  virtual bool AllFinite(int64_t count, const float* x) = 0;

  // True when no value of scores f32 [count] is NaN or +infinity; -infinity marks the entries that
  // IndexScores left out.
  virtual bool ScoresFinite(int64_t count, const float* scores) = 0;
};

}  // namespace deepinfer
