#include "kvcache/record.h"

#include <algorithm>

#include "base/check.h"
#include "base/crc32c.h"

namespace deepinfer {
namespace {

std::span<const std::byte> Section(std::span<const std::byte> record, const SectionEntry& entry) {
  return record.subspan(entry.offset, entry.length);
}

size_t TrailerOffset(const KvBlockLayout& layout) {
  return static_cast<size_t>(kRecordHeaderBytes + layout.payload_bytes());
}

// What the layout says the section table must be, without checksums.
SectionEntry PlaceOf(const KvBlockLayout& layout, size_t section) {
  return {static_cast<uint32_t>(kRecordHeaderBytes + layout.SectionOffset(section)),
          static_cast<uint32_t>(layout.sections[section].size_bytes()), 0};
}

}  // namespace

std::string_view RecordFaultName(RecordFault fault) {
  switch (fault) {
    case RecordFault::kNone:
      return "none";
    case RecordFault::kHeader:
      return "header";
    case RecordFault::kForeign:
      return "foreign";
    case RecordFault::kKey:
      return "key";
    case RecordFault::kSection:
      return "section";
    case RecordFault::kTrailer:
      return "trailer";
    case RecordFault::kNoKey:
      return "no key";
  }
  return "unknown";
}

void FillLayoutFields(const KvBlockLayout& layout, RecordHeader* header) {
  header->format_id = layout.format_id;
  header->num_sections = static_cast<uint8_t>(layout.sections.size());
  header->block_tokens = static_cast<uint16_t>(layout.block_tokens);
  header->payload_bytes = static_cast<uint64_t>(layout.payload_bytes());
}

void SealRecord(const KvBlockLayout& layout, RecordHeader header, std::span<std::byte> record) {
  DI_CHECK(static_cast<int64_t>(record.size()) == layout.record_bytes());
  FillLayoutFields(layout, &header);
  for (size_t i = 0; i < layout.sections.size(); ++i) {
    header.sections[i] = PlaceOf(layout, i);
    header.sections[i].crc = Crc32c(Section(record, header.sections[i]));
  }
  header.Seal();
  std::ranges::copy(AsBytes(header), record.begin());

  RecordTrailer trailer;
  trailer.sequence = header.sequence;
  trailer.header_crc = header.crc;
  trailer.writer_id = header.writer_id;
  const auto end = record.subspan(TrailerOffset(layout));
  std::ranges::copy(AsBytes(trailer), end.begin());
  std::ranges::fill(end.subspan(sizeof(trailer)), std::byte{0});
}

RecordFault CheckRecordFrame(const KvBlockLayout& layout, std::span<const std::byte> record) {
  if (static_cast<int64_t>(record.size()) != layout.record_bytes()) return RecordFault::kForeign;
  const RecordHeader header = HeaderOf(record);
  if (!header.IsIntact()) return RecordFault::kHeader;
  if (header.format_id != layout.format_id || header.block_tokens != layout.block_tokens ||
      header.payload_bytes != static_cast<uint64_t>(layout.payload_bytes()) ||
      header.num_sections != layout.sections.size() || header.retention >= kNumRetentionClasses) {
    return RecordFault::kForeign;
  }
  const auto trailer = FromBytes<RecordTrailer>(record.subspan(TrailerOffset(layout)));
  return trailer.Belongs(header) ? RecordFault::kNone : RecordFault::kTrailer;
}

RecordFault VerifyRecord(const KvBlockLayout& layout, std::span<const std::byte> record,
                         const BlockKey& key, uint32_t block_number) {
  if (const RecordFault fault = CheckRecordFrame(layout, record); fault != RecordFault::kNone) {
    return fault;
  }
  const RecordHeader header = HeaderOf(record);
  if (header.key != key || header.block_number != block_number) return RecordFault::kKey;
  for (size_t i = 0; i < layout.sections.size(); ++i) {
    const SectionEntry& entry = header.sections[i];
    const SectionEntry place = PlaceOf(layout, i);
    if (entry.offset != place.offset || entry.length != place.length ||
        entry.crc != Crc32c(Section(record, entry))) {
      return RecordFault::kSection;
    }
  }
  return RecordFault::kNone;
}

std::vector<std::byte> BuildFooter(const KvBlockLayout& layout, const Superblock& superblock,
                                   std::span<const IndexEntry> entries, uint64_t sealed_ns) {
  DI_CHECK(static_cast<int64_t>(entries.size()) <= layout.segment_capacity());
  std::vector<std::byte> footer(static_cast<size_t>(layout.footer_pages() * kPageBytes));
  const auto entry_bytes = std::as_bytes(entries);
  std::ranges::copy(entry_bytes, footer.begin());
  FooterTrailer trailer;
  trailer.record_count = static_cast<uint32_t>(entries.size());
  trailer.entries_crc = Crc32c(entry_bytes);
  trailer.sealed_ns = sealed_ns;
  trailer.writer_id = superblock.writer_id;
  trailer.segment_number = superblock.segment_number;
  trailer.superblock_crc = superblock.IdentityCrc();
  trailer.Seal();
  std::ranges::copy(AsBytes(trailer), std::span(footer).last(sizeof(trailer)).begin());
  return footer;
}

Result<ParsedFooter> ParseAnyFooter(const KvBlockLayout& layout,
                                    std::span<const std::byte> footer) {
  if (static_cast<int64_t>(footer.size()) != layout.footer_pages() * kPageBytes) {
    return DataCorruption("footer: wrong size");
  }
  ParsedFooter parsed{FromBytes<FooterTrailer>(footer.last(sizeof(FooterTrailer))), {}};
  if (!parsed.trailer.IsIntact()) return DataCorruption("footer: trailer");
  if (parsed.trailer.record_count > layout.segment_capacity()) {
    return DataCorruption("footer: count");
  }
  const auto bytes = footer.first(parsed.trailer.record_count * sizeof(IndexEntry));
  if (parsed.trailer.entries_crc != Crc32c(bytes)) return DataCorruption("footer: entries");
  parsed.entries.reserve(parsed.trailer.record_count);
  for (size_t i = 0; i < parsed.trailer.record_count; ++i) {
    const auto& entry = parsed.entries.emplace_back(
        FromBytes<IndexEntry>(bytes.subspan(i * sizeof(IndexEntry), sizeof(IndexEntry))));
    const bool in_place = entry.page == 1 + static_cast<int64_t>(i) * layout.record_pages();
    // Their bytes are those that the checksum of all of them covers.
    if (!entry.IsKnown() || !in_place) return DataCorruption("footer: entry");
  }
  return parsed;
}

Result<std::vector<IndexEntry>> ParseFooter(const KvBlockLayout& layout,
                                            const Superblock& superblock,
                                            std::span<const std::byte> footer) {
  DI_ASSIGN_OR_RETURN(ParsedFooter parsed, ParseAnyFooter(layout, footer));
  const FooterTrailer& trailer = parsed.trailer;
  if (trailer.writer_id != superblock.writer_id ||
      trailer.segment_number != superblock.segment_number ||
      trailer.superblock_crc != superblock.IdentityCrc()) {
    return DataCorruption("footer: of another segment");
  }
  return std::move(parsed.entries);
}

ParsedLog ParseIndexLog(std::span<const std::byte> log) {
  ParsedLog parsed;
  bool whole = true;
  for (; log.size() >= sizeof(IndexEntry); log = log.subspan(sizeof(IndexEntry))) {
    const auto entry = FromBytes<IndexEntry>(log);
    if (!entry.IsIntact()) {
      ++parsed.num_trailing;
      whole = false;
      continue;
    }
    parsed.num_damaged += parsed.num_trailing;
    parsed.num_trailing = 0;
    parsed.entries.push_back(entry);
    if (whole) ++parsed.num_leading;
  }
  if (!log.empty()) ++parsed.num_trailing;
  return parsed;
}

IndexEntry EntryOf(const RecordHeader& header, uint32_t segment_number, uint32_t page) {
  IndexEntry entry;
  entry.key = header.key;
  entry.tenant_tag = header.tenant_tag;
  entry.segment_number = segment_number;
  entry.page = page;
  entry.block_number = header.block_number;
  std::memcpy(&entry.parent_hint, header.parent_prefix.data(), sizeof(entry.parent_hint));
  entry.replay_gen = header.replay_gen;
  entry.retention = header.retention;
  entry.op = static_cast<uint8_t>(IndexOp::kAdd);
  entry.Seal();
  return entry;
}

}  // namespace deepinfer
