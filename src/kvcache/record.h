// One block as a record: building it around a payload, and the checks that every read passes
// through (kv_format.md §10).
// Thread rule: pure functions on the caller's buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kvcache/format.h"

namespace deepinfer {

// Why bytes are not the record that was asked for.
enum class RecordFault : uint8_t {
  kNone,
  kHeader,   // magic, version or checksum of the header
  kForeign,  // whole, but of another format, size or writer
  kKey,      // of another block
  kSection,  // a section's table entry or checksum
  kTrailer,
  kNoKey,  // encrypted, and not with a key of its tenant that is here
};
std::string_view RecordFaultName(RecordFault fault);

// Sets the fields of a header that follow from the layout: format, number of sections, sizes.
void FillLayoutFields(const KvBlockLayout& layout, RecordHeader* header);

// Fills the fields of `header` that follow from the layout (format, sections, sizes), checksums
// the payload that stands at kRecordHeaderBytes in `record`, and writes header, trailer and zero
// fill around it. record [layout.record_bytes()].
void SealRecord(const KvBlockLayout& layout, RecordHeader header, std::span<std::byte> record);

// Checks header and trailer only: enough to list a segment, not to serve it.
RecordFault CheckRecordFrame(const KvBlockLayout& layout, std::span<const std::byte> record);

// All checks: the frame, the full key, the block number and every section's checksum.
RecordFault VerifyRecord(const KvBlockLayout& layout, std::span<const std::byte> record,
                         const BlockKey& key, uint32_t block_number);

// The frame's bytes of a record in memory.
inline RecordHeader HeaderOf(std::span<const std::byte> record) {
  return FromBytes<RecordHeader>(record);
}
inline std::span<const std::byte> PayloadOf(const KvBlockLayout& layout,
                                            std::span<const std::byte> record) {
  return record.subspan(kRecordHeaderBytes, static_cast<size_t>(layout.payload_bytes()));
}

// A sealed segment's footer pages: [layout.footer_pages() pages].
std::vector<std::byte> BuildFooter(const KvBlockLayout& layout, const Superblock& superblock,
                                   std::span<const IndexEntry> entries, uint64_t sealed_ns);
// The trailer of a footer and its entries, of whatever segment, or data_corruption. Every entry is
// checked.
struct ParsedFooter {
  FooterTrailer trailer;
  std::vector<IndexEntry> entries;
};
Result<ParsedFooter> ParseAnyFooter(const KvBlockLayout& layout, std::span<const std::byte> footer);
// The entries of this segment's footer, or data_corruption.
Result<std::vector<IndexEntry>> ParseFooter(const KvBlockLayout& layout,
                                            const Superblock& superblock,
                                            std::span<const std::byte> footer);

// Entries of an index log. Those that only a later version knows are among the intact ones.
struct ParsedLog {
  std::vector<IndexEntry> entries;  // the intact ones, in order
  size_t num_leading = 0;           // of them before the first one that fails its check
  int64_t num_damaged = 0;          // fail it in front of an intact one
  int64_t num_trailing = 0;         // fail it behind the last intact one: a torn tail
};
// A partial entry at the end counts to the tail.
ParsedLog ParseIndexLog(std::span<const std::byte> log);

// The index entry that lists a record.
IndexEntry EntryOf(const RecordHeader& header, uint32_t segment_number, uint32_t page);

}  // namespace deepinfer
