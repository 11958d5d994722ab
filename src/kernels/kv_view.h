// How operators see cached rows: row formats, pages reached through a block table, window rows in
// rings and in the buffer of the running step.
// Thread rule: plain values that borrow memory for one operator call.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deepinfer {

// kQuantized is the model (model.md §12). kFloat32 is the test form without cache quantisation
// (numerics.md §2, f32_nokvq): rows of plain fp32.
enum class KvFormat : uint8_t { kQuantized, kFloat32 };

// SWA row of n channels: n E4M3 codes, then n/32 UE8M0 scales.
inline constexpr int64_t WindowRowBytes(KvFormat f, int64_t n) {
  return f == KvFormat::kQuantized ? n + n / 32 : 4 * n;
}
// Compressed entry of n channels: n/2 bytes of E2M1 pairs, then n/16 E4M3 scales.
inline constexpr int64_t CompressedRowBytes(KvFormat f, int64_t n) {
  return f == KvFormat::kQuantized ? n / 2 + n / 16 : 4 * n;
}
// Index key of n channels: n/2 bytes of E2M1 pairs; its n/32 UE8M0 scales stand apart.
inline constexpr int64_t IndexCodeBytes(KvFormat f, int64_t n) {
  return f == KvFormat::kQuantized ? n / 2 : 4 * n;
}
inline constexpr int64_t IndexScaleBytes(KvFormat f, int64_t n) {
  return f == KvFormat::kQuantized ? n / 32 : 0;
}

// The entries of one KV source of one sequence. Entry j lives in page block_table[j / n] at
// slot j % n, n = entries_per_block; a page starts at pool + page · block_stride.
struct KvPages {
  std::byte* pool = nullptr;
  int64_t block_stride = 0;  // bytes
  const int32_t* block_table = nullptr;
  int32_t entries_per_block = 0;
  int64_t main_offset = 0;         // of the first compressed row inside a page
  int64_t index_code_offset = 0;   // of the first index key's codes
  int64_t index_scale_offset = 0;  // of the first index key's scales
  int64_t main_row_bytes = 0;
  int64_t index_code_bytes = 0;
  int64_t index_scale_bytes = 0;

  std::byte* MainRow(int64_t j) const {
    return Page(j) + main_offset + (j % entries_per_block) * main_row_bytes;
  }
  std::byte* IndexCodes(int64_t j) const {
    return Page(j) + index_code_offset + (j % entries_per_block) * index_code_bytes;
  }
  std::byte* IndexScales(int64_t j) const {
    return Page(j) + index_scale_offset + (j % entries_per_block) * index_scale_bytes;
  }

 private:
  std::byte* Page(int64_t j) const {
    return pool + block_table[j / entries_per_block] * block_stride;
  }
};

// Window rows of one sequence and layer. Position p is in the ring, slot p % ring_rows, for
// p < step_start, and in step_rows for p >= step_start.
struct WindowRows {
  const std::byte* ring = nullptr;
  const std::byte* step_rows = nullptr;
  int32_t ring_rows = 0;
  int32_t step_start = 0;
  int64_t row_bytes = 0;

  const std::byte* Row(int64_t p) const {
    return p < step_start ? ring + (p % ring_rows) * row_bytes
                          : step_rows + (p - step_start) * row_bytes;
  }
};

}  // namespace deepinfer
