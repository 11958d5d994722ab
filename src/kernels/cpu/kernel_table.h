// The CPU kernels of one instruction-set level, as function pointers. cpu_operators splits an
// operator into tasks and calls these; a kernel sees one task and knows nothing of threads.
// Files named *_avx2.cc, *_avx512.cc and *_avx512bf16.cc fill the table. They are compiled with
// their own -m flags, so whatever they share comes from headers with internal linkage: an inline
// function with external linkage could be kept by the linker in the wrong instruction set.
// Thread rule: the tables are immutable; kernels may run on any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ops.h"

namespace deepinfer {

// K of the f32fma linears is cut into segments of this length (numerics.md §7).
inline constexpr int64_t kSegmentLength = 512;
// Outputs of one f32fma vector: SIMD lanes run over outputs.
inline constexpr int32_t kVectorOutputs = 16;
// K of the bf16dot linears is walked in blocks of this length (numerics.md §7).
inline constexpr int64_t kDotBlock = 128;
// Scale bytes of a block without scales: 1 for each of its four groups.
inline constexpr uint32_t kUnitScales = 0x7F7F7F7Fu;
// Rows of one linear task: their accumulators stay in the second-level cache.
inline constexpr int64_t kMaxTaskRows = 256;

// An expanded row of the bf16dot family starts with this; its blocks follow.
struct DotRowHeader {
  uint32_t is_moderate = 0;  // prepared for FP8 and FP4 weights (linear_dot_rows.h)
};
inline constexpr int64_t kDotHeaderBytes = 64;

// Where the weights of an output lie.
struct WeightAddress {
  const uint8_t* data = nullptr;
  const uint8_t* scales = nullptr;
};

// One linear task: outputs [first_output, first_output + num_outputs) for some rows.
struct LinearTask {
  const WeightMatrix* weight = nullptr;
  int64_t first_output = 0;
  int64_t num_outputs = 0;              // f32fma: at most the width of the kernel that is called
  int64_t num_rows = 0;                 // at most kMaxTaskRows
  const std::byte* const* x = nullptr;  // start of every row, in the form of the family
  float* const* y = nullptr;            // start of every result row
  int64_t y_column = 0;                 // column of the first output
  WeightAddress next;                   // what the thread will probably read after this, or null
};
using LinearKernel = void (*)(const LinearTask& task);

// Widths of the f32fma kernels: 16, 32 and 64 outputs. More outputs mean longer independent chains
// for few rows, fewer leave registers for more rows.
inline constexpr int kNumLinearWidths = 3;

struct LinearKernels {
  LinearKernel f32fma[kNumLinearWidths] = {};
  // Largest number of rows for which 64 and 32 outputs at a time are the better shape.
  int64_t max_rows_of_64 = 0;
  int64_t max_rows_of_32 = 0;

  // Any number of outputs.
  LinearKernel bf16dot = nullptr;
  // Bytes of a block of an expanded row.
  int64_t dot_block_bytes = 0;
  // Writes the blocks of k codes (a multiple of 32) and their scales, for FP8 and FP4 weights if
  // for_codes, else for bf16 weights. False if the values are not moderate: the blocks are then
  // those for bf16 weights.
  bool (*expand_fp8)(const uint8_t* codes, const uint8_t* scales, int64_t k, bool for_codes,
                     std::byte* blocks) = nullptr;
  // Writes the blocks of a row of k bf16 values held in fp32, for bf16 weights.
  void (*expand_bf16)(const float* x, int64_t k, std::byte* blocks) = nullptr;
};

// Rows that read the weights of a hyper-connection site together, and the mixes of one task.
inline constexpr int kHcTaskRows = 8;
inline constexpr int kHcTaskMixes = 12;

// mixes[t · mixes_stride + m] = h_t · fn_m for num_rows rows and num_mixes rows of fn, all of
// `width` elements; squares[t] = h_t · h_t unless nullptr.
struct HcMixTask {
  const float* h = nullptr;
  const float* fn = nullptr;
  int64_t num_rows = 0;
  int64_t num_mixes = 0;
  int64_t width = 0;
  float* mixes = nullptr;
  int64_t mixes_stride = 0;
  float* squares = nullptr;
};

// Kernels on one row. Reductions are Lane16.
struct RowKernels {
  void (*rms_norm)(const float* x, const uint16_t* w, int64_t dim, float eps, float* out) = nullptr;
  void (*hc_mixes)(const HcMixTask& task) = nullptr;
  // Channels [begin, end) of Operators::HcPre and HcPost for one row.
  void (*hc_pre)(const float* h, const float* pre, int32_t copies, int64_t dim, int64_t begin,
                 int64_t end, float* out) = nullptr;
  void (*hc_post)(const float* x, const float* h, const float* post, const float* comb,
                  int32_t copies, int64_t dim, int64_t begin, int64_t end, float* out) = nullptr;
  // gate = weight · (silu(min(gate, limit)) · clamp(up, ±limit)), in place.
  void (*swiglu)(int64_t n, float weight, float limit, const float* up, float* gate) = nullptr;
  // Nearest bf16 values, in place.
  void (*round_bf16)(int64_t n, float* x) = nullptr;
  // sum += y.
  void (*add)(int64_t n, const float* y, float* sum) = nullptr;
  // v[i] = v[i]·cos[i] + v[i ^ 1]·sin[i], n even; rounded to bf16 on demand.
  void (*rotate)(const float* cos, const float* sin, int64_t n, bool round, float* v) = nullptr;
  // One row of Operators::CompressPair.
  void (*compress_pair)(const float* kv0, const float* g0, const float* kv1, const float* g1,
                        int64_t n, float* latent) = nullptr;
  // Whether every one of n values is finite.
  bool (*all_finite)(int64_t n, const float* x) = nullptr;
  // Largest of every kMaximaBlock of n values; NaN where one is not finite.
  void (*block_maxima)(int64_t n, const float* x, float* maxima) = nullptr;
  // The Sinkhorn iterations on comb [4, 4] after the row softmax, in place.
  void (*sinkhorn_of_4)(int32_t iters, float eps, float* comb) = nullptr;
  // One copy of one row of Operators::EngramGate.
  void (*engram_gate)(const float* key, const float* value, const uint16_t* q_weight,
                      const uint16_t* k_weight, int64_t dim, float rms_eps, float* h) = nullptr;
  // n values, a multiple of 32, to E4M3 codes [n] and UE8M0 scales [n/32].
  void (*quantize_fp8)(const float* x, int64_t n, uint8_t* codes, uint8_t* scales) = nullptr;
  // scores[i] = sqrt(softplus(logits[i] / temperature)).
  void (*route_scores)(const float* logits, int64_t n, float temperature, float* scores) = nullptr;
  // Twin of DetExp on 16 lanes, n values; for tests.
  void (*exp)(int64_t n, const float* x, float* out) = nullptr;
};

// Attention of num_heads heads of rows whose window and pages are the same. The rows of q and o are
// row_stride floats apart. scratch: AttentionScratchFloats floats.
struct AttentionTask {
  const AttentionRow* rows = nullptr;
  int32_t num_rows = 0;
  const AttentionShape* shape = nullptr;
  int32_t num_heads = 0;
  int64_t row_stride = 0;
  const float* q = nullptr;     // [num_heads, head_dim] of the first row
  const float* sink = nullptr;  // [num_heads]
  float* o = nullptr;
  float* scratch = nullptr;
};

// Keys that are dequantised together (numerics.md §7).
inline constexpr int32_t kTileKeys = 64;

// The dequantised tile and the scores of every head.
inline int64_t TileScratchFloats(int32_t num_heads, int32_t head_dim) {
  return int64_t{kTileKeys} * (head_dim + num_heads) + 2 * int64_t{num_heads};
}

// Of an attention task in either family, and a multiple of 16.
inline int64_t AttentionScratchFloats(int32_t num_rows, int32_t num_heads, int32_t head_dim) {
  const int64_t dim = (head_dim + 127) / 128 * 128;  // blocks of the bf16dot family
  const int64_t states = int64_t{num_rows} * num_heads;
  const int64_t floats = 2 * states * (dim + 1) + (kTileKeys + 1) * (dim + 16) + dim +
                         int64_t{num_heads} * (kTileKeys + 1);
  return (floats + 15) / 16 * 16;
}

struct AttentionKernels {
  void (*fp32)(const AttentionTask& task) = nullptr;
  void (*bf16)(const AttentionTask& task) = nullptr;  // the quantised cache only
};

// The query of an indexer row in integers (index_kernels.h): heads in the lanes, padded with zeros
// to padded_heads.
struct IndexQuery {
  bool is_exact = false;       // whether integers give the bits of fp32
  int32_t max_key_spread = 0;  // largest difference of a key's exponents for which they do
  int64_t padded_heads = 0;
  int8_t* codes = nullptr;   // [head_dim / 4, padded_heads, 4], twice the values
  int16_t* start = nullptr;  // [head_dim / 32, padded_heads, 2], takes the keys' offset away
  float* scales = nullptr;   // [head_dim / 32, padded_heads]
};

// Index scores of up to kTileKeys entries of one row.
struct IndexTask {
  const IndexRow* row = nullptr;
  const IndexShape* shape = nullptr;
  const IndexQuery* query = nullptr;  // or nullptr
  const float* q = nullptr;           // [num_heads, head_dim]
  const float* w = nullptr;           // [num_heads]
  const int64_t* entries = nullptr;
  int32_t num_entries = 0;
  float* scores = nullptr;   // of the row
  float* scratch = nullptr;  // TileScratchFloats of the padded heads
};

struct IndexKernels {
  int32_t head_lanes = 0;  // padded_heads is a multiple
  void (*prepare_query)(const float* q, int32_t num_heads, int64_t dim,
                        IndexQuery* query) = nullptr;
  void (*index_scores)(const IndexTask& task) = nullptr;
  // Appends the elements of x [n] above the threshold, and `first` plus their places; returns
  // their number. A NaN is above nothing.
  int64_t (*scan_above)(const float* x, int64_t n, float threshold, int32_t first, float* values,
                        int32_t* indices) = nullptr;
  // out[b] = largest of x [8·b, 8·b + 8), NaN counted as -infinity.
  void (*maxima_of_8)(const float* x, int64_t num_blocks, float* out) = nullptr;
};

// Everything of one level.
struct CpuKernels {
  LinearKernels linear;
  RowKernels row;
  AttentionKernels attention;
  IndexKernels index;
};

}  // namespace deepinfer
