#include "kvcache/format.h"

#include "base/crc32c.h"

namespace deepinfer {
namespace {

// Checksum of the structure's bytes before `end`.
template <typename T>
uint32_t CrcBefore(const T& value, size_t end) {
  return Crc32c(AsBytes(value).first(end));
}

}  // namespace

void RecordHeader::Seal() { crc = CrcBefore(*this, offsetof(RecordHeader, crc)); }

bool RecordHeader::IsIntact() const {
  return magic == kRecordMagic && version == kFormatVersion && header_bytes == kRecordHeaderBytes &&
         crc == CrcBefore(*this, offsetof(RecordHeader, crc));
}

bool RecordTrailer::Belongs(const RecordHeader& header) const {
  return magic == kRecordEndMagic && sequence == header.sequence && header_crc == header.crc &&
         writer_id == header.writer_id;
}

void Superblock::Seal() { crc = CrcBefore(*this, offsetof(Superblock, crc)); }

bool Superblock::IsIntact() const {
  return magic == kSegmentMagic && version == kFormatVersion &&
         crc == CrcBefore(*this, offsetof(Superblock, crc));
}

uint32_t Superblock::IdentityCrc() const {
  return CrcBefore(*this, offsetof(Superblock, bucket_hour));
}

Result<KvBlockLayout> Superblock::Layout() const {
  if (page_shift != 12 || num_sections > kMaxSections || retention >= kNumRetentionClasses) {
    return DataCorruption("superblock: sizes out of range");
  }
  KvBlockLayout layout;
  layout.format_id = format_id;
  layout.block_tokens = block_tokens;
  layout.segment_pages = segment_pages;
  layout.sections.assign(sections.begin(), sections.begin() + num_sections);
  if (Status status = layout.Validate(); !status.ok()) {
    return DataCorruption("superblock: " + status.message());
  }
  if (layout.record_pages() != record_pages || layout.segment_capacity() != capacity ||
      layout.footer_pages() != footer_pages) {
    return DataCorruption("superblock: sizes contradict the section table");
  }
  return layout;
}

void IndexEntry::Seal() { crc = CrcBefore(*this, offsetof(IndexEntry, crc)); }

bool IndexEntry::IsIntact() const { return crc == CrcBefore(*this, offsetof(IndexEntry, crc)); }

bool IndexEntry::IsKnown() const {
  return op >= static_cast<uint8_t>(IndexOp::kAdd) &&
         op <= static_cast<uint8_t>(IndexOp::kRecordDropped) && retention < kNumRetentionClasses;
}

void FooterTrailer::Seal() { crc = CrcBefore(*this, offsetof(FooterTrailer, crc)); }

bool FooterTrailer::IsIntact() const {
  return magic == kFooterMagic && crc == CrcBefore(*this, offsetof(FooterTrailer, crc));
}

void TouchPage::Seal() {
  crc = 0;
  crc = Crc32c(AsBytes(*this));
}

bool TouchPage::IsIntact() const {
  if (magic != kTouchMagic || count > kTouchesPerPage) return false;
  TouchPage copy = *this;
  copy.Seal();
  return crc == copy.crc;
}

}  // namespace deepinfer
