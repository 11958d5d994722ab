// Exact operation counts of rows, in FP8-equivalent operations: a multiply-add counts FP4 1, FP8 2,
// BF16 4, FP32 8 (architecture.md §7).
// Thread rule: immutable after construction.
#pragma once

#include <cstdint>
#include <vector>

namespace deepinfer {

// Dimensions of a model as far as they cost time. Plain numbers, so that the planner and the
// simulator need no model.
struct CostShape {
  struct Layer {
    int32_t ratio = 0;  // tokens per compressed entry; 0: window only
    bool kv_source = false;
    bool index_source = false;
    bool engram = false;
    // Entries an index source scans at most: those of the candidate blocks; 0: all.
    int64_t index_cap = 0;
  };
  std::vector<Layer> layers;
  int32_t decoder_start = 0;
  int64_t dim = 0, heads = 0, head_dim = 0, q_lora = 0, o_groups = 0, o_lora = 0;
  int64_t moe_inter = 0, num_experts = 0, experts_per_token = 0;
  int64_t hc_mult = 0, window = 0, engram_width = 0, vocab = 0;
  int64_t index_heads = 0, index_head_dim = 0, index_topk = 0;
};

// Operations per multiply-add. A CPU without units of low precision uses 2 for all.
struct FormatCost {
  double fp4 = 1, fp8 = 2, bf16 = 4, fp32 = 8;
};

// Σ_{t < x} min(⌊t / ratio⌋, cap): entries visible to the rows before x.
double VisibleEntries(int64_t x, int64_t ratio, int64_t cap);

class FlopModel {
 public:
  explicit FlopModel(const CostShape& shape, FormatCost format = {});

  // Operations of prompt rows [start, end), of which those from decoder_from on run the decoder.
  double PrefillRows(int64_t start, int64_t end, int64_t decoder_from) const;
  // Of these the attention cores and index scans: what grows with the context.
  double AttentionOfPrefillRows(int64_t start, int64_t end, int64_t decoder_from) const;
  // Operations of one decode row at the position, with its logits.
  double DecodeRow(int64_t position) const;
  double AttentionOfDecodeRow(int64_t position) const;
  // Index entries scanned by prompt rows [start, end): the part of their cost that grows with the
  // context.
  double IndexPairs(int64_t start, int64_t end, int64_t decoder_from) const;

 private:
  // Layers that see the same entries.
  struct Keys {
    int64_t ratio;
    int64_t cap;
    double num_layers;
  };
  // The layers before the cut, or from it on. Summed once, so that counting a row costs as much in
  // a deep model as in a flat one.
  struct Half {
    double row = 0;           // operations of a row that do not depend on the context
    std::vector<Keys> keys;   // of the attention cores
    std::vector<Keys> scans;  // of the index scans
  };

  static void Add(int64_t ratio, int64_t cap, std::vector<Keys>* keys);
  static double Visible(const std::vector<Keys>& keys, int64_t start, int64_t end);
  // Of rows [start, end) through the half.
  double Attention(const Half& half, int64_t start, int64_t end) const;

  Half encoder_, decoder_;
  double publication_ = 0;  // of a row, for all KV sources
  double logits_ = 0;       // of a row
  double per_key_ = 0;      // operations per row and key
  double per_scan_ = 0;     // and per index entry
};

}  // namespace deepinfer
