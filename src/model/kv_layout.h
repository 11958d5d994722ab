// Sizes and offsets of a request's state: global KV pages and the fixed-size state slot
// (model.md §12, kv_format.md). Every size comes from the configuration.
// Thread rule: immutable values.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kv_view.h"
#include "model/config.h"

namespace deepinfer {

// Tokens of a global KV page.
inline constexpr int32_t kBlockTokens = 128;

// One KV source's part of a page.
struct KvSection {
  int32_t layer = 0;
  int32_t ratio = 1;
  int32_t entries_per_block = 0;
  int64_t main_offset = 0;
  int64_t index_code_offset = 0;
  int64_t index_scale_offset = 0;
  int64_t size_bytes = 0;
};

struct KvLayout {
  KvFormat format = KvFormat::kQuantized;
  std::vector<KvSection> sections;  // in order of kv_source_layers
  int64_t main_row_bytes = 0;
  int64_t index_code_bytes = 0;
  int64_t index_scale_bytes = 0;
  int64_t block_bytes = 0;  // payload of a page; also its stride in the CPU pool

  int32_t ring_rows = 0;
  int64_t window_row_bytes = 0;
  int64_t ring_bytes = 0;              // of one layer
  int32_t num_rings = 0;               // backbone, then draft layers
  int32_t compressor_ring_rows = 0;    // ratio + drafts
  int64_t compressor_row_bytes = 0;    // kv and gate rows, f32 [2, head_dim]
  int64_t compressor_ring_offset = 0;  // of the first ring inside a slot
  int64_t slot_bytes = 0;

  static KvLayout Create(const ModelConfig& config, KvFormat format);

  KvPages Pages(int32_t source, std::byte* pool, const int32_t* block_table) const;
  std::byte* Ring(std::byte* slot, int32_t layer) const { return slot + layer * ring_bytes; }
  // fp32 rows (kv, then gate) of a ratio-2 source; slot index = position % compressor_ring_rows.
  std::byte* CompressorRing(std::byte* slot, int32_t source) const;

  // Pages that num_tokens tokens need.
  static int64_t NumBlocks(int64_t num_tokens) {
    return (num_tokens + kBlockTokens - 1) / kBlockTokens;
  }
};

}  // namespace deepinfer
