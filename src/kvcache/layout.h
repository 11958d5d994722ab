// Sizes of stored blocks, computed from the rows of each KV source (kv_format.md §9). Nothing about
// a particular model is known here.
// Thread rule: immutable values.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"

namespace deepinfer {

inline constexpr int64_t kPageBytes = 4096;
inline constexpr int64_t kRecordHeaderBytes = 256;
inline constexpr int64_t kRecordTrailerBytes = 32;
inline constexpr int32_t kMaxSections = 6;
inline constexpr uint32_t kFormatFp4 = 1;
inline constexpr uint32_t kFormatFp8 = 2;
// Formats from here on are computed from their section table: small test models.
inline constexpr uint32_t kFirstTestFormat = 0x80000000;
// 256 MiB.
inline constexpr uint32_t kDefaultSegmentPages = 65'536;

// One KV source inside a block.
struct KvSectionLayout {
  uint16_t layer = 0;
  uint16_t entries_per_block = 0;
  uint16_t main_row_bytes = 0;
  uint16_t index_row_bytes = 0;  // codes and scales

  friend bool operator==(const KvSectionLayout&, const KvSectionLayout&) = default;
  int64_t size_bytes() const {
    return int64_t{entries_per_block} * (main_row_bytes + index_row_bytes);
  }
};

struct KvBlockLayout {
  uint32_t format_id = 0;
  uint32_t block_tokens = 0;
  uint32_t segment_pages = kDefaultSegmentPages;
  std::vector<KvSectionLayout> sections;  // in source order, 1 .. kMaxSections

  friend bool operator==(const KvBlockLayout&, const KvBlockLayout&) = default;
  // invalid_request: no or too many sections, empty rows, or segments too small for one record.
  Status Validate() const;

  // Offset of a section inside the payload, a multiple of 64.
  int64_t SectionOffset(size_t section) const;
  // Bytes of a block; each section padded to a multiple of 64.
  int64_t payload_bytes() const;
  int64_t record_pages() const;
  int64_t record_bytes() const { return record_pages() * kPageBytes; }
  // Records of a segment: the most for which superblock, records and footer fit.
  int64_t segment_capacity() const;
  int64_t footer_pages() const;
  int64_t segment_bytes() const { return int64_t{segment_pages} * kPageBytes; }
  int64_t RecordOffset(int64_t record_index) const {
    return kPageBytes + record_index * record_bytes();
  }
  int64_t footer_offset() const { return RecordOffset(segment_capacity()); }
};

}  // namespace deepinfer
