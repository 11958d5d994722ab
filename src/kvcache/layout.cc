#include "kvcache/layout.h"

#include <algorithm>

namespace deepinfer {
namespace {

constexpr int64_t kSectionAlignment = 64;
constexpr int64_t kIndexEntryBytes = 64;
constexpr int64_t kMostSegmentRecords = 65'536;

int64_t AlignUp(int64_t value, int64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

// Pages of `count` index entries and the footer's trailer, which is as long as an entry.
int64_t FooterPages(int64_t count) {
  return AlignUp((count + 1) * kIndexEntryBytes, kPageBytes) / kPageBytes;
}

}  // namespace

Status KvBlockLayout::Validate() const {
  if (sections.empty() || sections.size() > kMaxSections) {
    return InvalidRequest("a block has 1 to 6 sections");
  }
  if (block_tokens == 0) return InvalidRequest("a block has no tokens");
  for (const KvSectionLayout& section : sections) {
    if (section.size_bytes() == 0) return InvalidRequest("a section has no bytes");
  }
  // An index entry numbers pages with 32 bits; 16 GiB is far beyond any sensible file.
  if (segment_pages > (uint32_t{1} << 22)) return InvalidRequest("segments are too large");
  // Touch logs and the index number records with 16 bits.
  if (segment_capacity() > kMostSegmentRecords) {
    return InvalidRequest("a segment holds at most 65536 records");
  }
  if (segment_capacity() < 1) return InvalidRequest("segments are too small for one record");
  return OkStatus();
}

int64_t KvBlockLayout::SectionOffset(size_t section) const {
  int64_t offset = 0;
  for (size_t i = 0; i < section; ++i) {
    offset = AlignUp(offset + sections[i].size_bytes(), kSectionAlignment);
  }
  return offset;
}

int64_t KvBlockLayout::payload_bytes() const { return SectionOffset(sections.size()); }

int64_t KvBlockLayout::record_pages() const {
  return AlignUp(kRecordHeaderBytes + payload_bytes() + kRecordTrailerBytes, kPageBytes) /
         kPageBytes;
}

int64_t KvBlockLayout::segment_capacity() const {
  // An upper bound without the footer, then down to what fits with it: a few steps.
  int64_t count = (int64_t{segment_pages} - 2) / record_pages();
  while (count > 0 && 1 + count * record_pages() + FooterPages(count) > segment_pages) --count;
  return std::max<int64_t>(count, 0);
}

int64_t KvBlockLayout::footer_pages() const { return FooterPages(segment_capacity()); }

}  // namespace deepinfer
