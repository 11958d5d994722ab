#include "model/kv_layout.h"

#include <algorithm>

#include "base/check.h"

namespace deepinfer {

namespace {

constexpr int64_t kSectionAlignment = 64;  // kv_format.md §2
constexpr int64_t kFp32RowAlignment = 32;

int64_t AlignUp(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

KvLayout KvLayout::Create(const ModelConfig& config, KvFormat format) {
  KvLayout k;
  k.format = format;
  k.main_row_bytes = CompressedRowBytes(format, config.head_dim);
  k.index_code_bytes = IndexCodeBytes(format, config.index_head_dim);
  k.index_scale_bytes = IndexScaleBytes(format, config.index_head_dim);
  int64_t offset = 0;
  for (int32_t layer : config.kv_source_layers) {
    KvSection s;
    s.layer = layer;
    s.ratio = config.ratio(layer);
    s.entries_per_block = kBlockTokens / s.ratio;
    s.main_offset = offset;
    s.index_code_offset = s.main_offset + s.entries_per_block * k.main_row_bytes;
    s.index_scale_offset = s.index_code_offset + s.entries_per_block * k.index_code_bytes;
    s.size_bytes = s.index_scale_offset + s.entries_per_block * k.index_scale_bytes - s.main_offset;
    offset = AlignUp(offset + s.size_bytes, kSectionAlignment);
    k.sections.push_back(s);
  }
  k.block_bytes = offset;

  k.ring_rows = config.ring_rows();
  k.window_row_bytes = WindowRowBytes(format, config.head_dim);
  k.ring_bytes = k.ring_rows * k.window_row_bytes;
  k.num_rings = config.num_layers + config.dspark.num_layers;
  k.compressor_ring_rows = 2 + k.ring_rows - config.window - 1;
  k.compressor_row_bytes = 2 * config.head_dim * static_cast<int64_t>(sizeof(float));
  k.compressor_ring_offset = AlignUp(k.num_rings * k.ring_bytes, kFp32RowAlignment);
  const auto pairs = std::count_if(k.sections.begin(), k.sections.end(),
                                   [](const KvSection& s) { return s.ratio == 2; });
  const int64_t payload =
      k.compressor_ring_offset + pairs * k.compressor_ring_rows * k.compressor_row_bytes;
  // Padded to two window rows (kv_format.md §3: a multiple of 1,056 in the released model).
  k.slot_bytes = AlignUp(payload, 2 * k.window_row_bytes);
  return k;
}

KvPages KvLayout::Pages(int32_t source, std::byte* pool, const int32_t* block_table) const {
  const KvSection& s = sections[static_cast<size_t>(source)];
  KvPages pages;
  pages.pool = pool;
  pages.block_stride = block_bytes;
  pages.block_table = block_table;
  pages.entries_per_block = s.entries_per_block;
  pages.main_offset = s.main_offset;
  pages.index_code_offset = s.index_code_offset;
  pages.index_scale_offset = s.index_scale_offset;
  pages.main_row_bytes = main_row_bytes;
  pages.index_code_bytes = index_code_bytes;
  pages.index_scale_bytes = index_scale_bytes;
  return pages;
}

std::byte* KvLayout::CompressorRing(std::byte* slot, int32_t source) const {
  DI_CHECK(sections[static_cast<size_t>(source)].ratio == 2);
  int64_t earlier = 0;
  for (int32_t s = 0; s < source; ++s) earlier += sections[static_cast<size_t>(s)].ratio == 2;
  return slot + compressor_ring_offset + earlier * compressor_ring_rows * compressor_row_bytes;
}

}  // namespace deepinfer
