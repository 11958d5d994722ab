#include "kvcache/segment_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "kvcache/page_buffer.h"

namespace deepinfer {
namespace {

std::string FolderOf(const std::string& path) { return path.substr(0, path.rfind('/')); }

Status WritePages(File* file, std::span<const std::byte> bytes, int64_t offset) {
  PageBuffer aligned(static_cast<int64_t>(bytes.size()));
  if (!aligned.ok()) return ResourceExhausted("no memory for a write");
  std::ranges::copy(bytes, aligned.bytes().begin());
  return file->WriteAt(aligned.bytes(), offset);
}

Result<Superblock> SuperblockOf(File* file, const std::string& path,
                                const Sha256Digest& namespace_id) {
  PageBuffer page(kPageBytes);
  if (!page.ok()) return ResourceExhausted("no memory for a page");
  Superblock superblock;
  for (int tries = 0; tries < kReadTries; ++tries) {
    DI_RETURN_IF_ERROR(ReadExactly(file, page.bytes(), 0).Annotate(path));
    superblock = FromBytes<Superblock>(page.bytes());
    if (superblock.IsIntact()) break;
  }
  if (superblock.magic == kSegmentMagic && superblock.version != kFormatVersion) {
    return Unsupported(fmt::format("{}: version {}", path, superblock.version));
  }
  if (!superblock.IsIntact()) return DataCorruption(path + ": superblock");
  if (superblock.namespace_id != namespace_id) {
    return DataCorruption(path + ": superblock of another namespace");
  }
  DI_RETURN_IF_ERROR(superblock.Layout().status());
  return superblock;
}

// Looks at the footer until `accept` takes it; false when it never does.
Result<bool> TryFooter(File* file, const KvBlockLayout& layout,
                       const std::function<bool(std::span<const std::byte>)>& accept) {
  PageBuffer footer(layout.footer_pages() * kPageBytes);
  if (!footer.ok()) return ResourceExhausted("no memory for a footer");
  for (int tries = 0; tries < kReadTries; ++tries) {
    DI_ASSIGN_OR_RETURN(const size_t read, ReadUpTo(file, footer.bytes(), layout.footer_offset()));
    if (read == footer.bytes().size() && accept(footer.bytes())) return true;
  }
  return false;
}

// The header of the record at this place when its frame is whole.
Result<std::optional<RecordHeader>> ReadFrame(File* file, const KvBlockLayout& layout,
                                              int64_t place, PageBuffer* record) {
  for (int tries = 0; tries < kReadTries; ++tries) {
    DI_ASSIGN_OR_RETURN(const size_t read,
                        ReadUpTo(file, record->bytes(), layout.RecordOffset(place)));
    if (read < record->bytes().size()) break;
    if (CheckRecordFrame(layout, record->bytes()) == RecordFault::kNone) {
      return std::optional(HeaderOf(record->bytes()));
    }
  }
  return std::optional<RecordHeader>();
}

// Records with a deadline of their own leave with their segment's bucket, which nothing else tells.
bool AnyAbsoluteDeadline(File* file, const KvBlockLayout& layout, size_t num_records) {
  PageBuffer page(kPageBytes);
  if (!page.ok()) return true;
  for (size_t i = 0; i < num_records; ++i) {
    const Status read =
        ReadExactly(file, page.bytes(), layout.RecordOffset(static_cast<int64_t>(i)));
    const auto header = FromBytes<RecordHeader>(page.bytes());
    if (!read.ok()) return true;
    if (header.IsIntact() && (header.flags & kRecordAbsoluteDeadline) != 0) return true;
  }
  return false;
}

Result<SegmentContent> ReadContent(File* file, const Superblock& superblock,
                                   const LoggedAdds& logged) {
  SegmentContent content;
  content.superblock = superblock;
  DI_ASSIGN_OR_RETURN(content.layout, superblock.Layout());
  const KvBlockLayout& layout = content.layout;
  const auto accept = [&](std::span<const std::byte> footer) {
    auto entries = ParseFooter(layout, superblock, footer);
    if (!entries.ok()) return false;
    content.entries = *std::move(entries);
    content.sealed_ns = FromBytes<FooterTrailer>(footer.last(sizeof(FooterTrailer))).sealed_ns;
    return true;
  };
  DI_ASSIGN_OR_RETURN(content.from_footer, TryFooter(file, layout, accept));
  if (content.from_footer) return content;
  DI_ASSIGN_OR_RETURN(const auto adds, logged());
  DI_ASSIGN_OR_RETURN(content.entries, ScanRecords(file, layout, superblock, adds));
  return content;
}

// Footer, durable, then the sealed name, durable.
Result<std::string> WriteFooterAndRename(FileSystem* files, File* file, const std::string& path,
                                         const KvBlockLayout& layout, const Superblock& superblock,
                                         std::span<const IndexEntry> entries, uint64_t now_ns) {
  DI_RETURN_IF_ERROR(
      WritePages(file, BuildFooter(layout, superblock, entries, now_ns), layout.footer_offset()));
  DI_RETURN_IF_ERROR(file->SyncData());
  const std::string folder = FolderOf(path);
  const std::string sealed = folder + "/" + SegmentFileName(superblock.segment_number, "seg");
  if (path != sealed) DI_RETURN_IF_ERROR(files->Rename(path, sealed));
  DI_RETURN_IF_ERROR(files->SyncDirectory(folder));
  return sealed;
}

}  // namespace

std::string SegmentFileName(uint64_t number, std::string_view extension) {
  return fmt::format("seg-{:010}.{}", number, extension);
}

std::optional<SegmentName> ParseSegmentFileName(std::string_view name) {
  constexpr std::string_view kPrefix = "seg-";
  constexpr size_t kDigits = 10;
  if (!name.starts_with(kPrefix) || name.size() < kPrefix.size() + kDigits + 2) return std::nullopt;
  const std::string_view digits = name.substr(kPrefix.size(), kDigits);
  SegmentName parsed;
  const auto [end, error] = std::from_chars(digits.begin(), digits.end(), parsed.number);
  if (error != std::errc() || end != digits.end()) return std::nullopt;
  if (name[kPrefix.size() + kDigits] != '.') return std::nullopt;
  parsed.extension = name.substr(kPrefix.size() + kDigits + 1);
  if (parsed.extension != "open" && parsed.extension != "seg" && parsed.extension != "bad") {
    return std::nullopt;
  }
  return parsed;
}

SegmentWriter::SegmentWriter(FileSystem* files, std::string folder, const KvBlockLayout& layout,
                             const Superblock& superblock)
    : files_(files), folder_(std::move(folder)), layout_(layout), superblock_(superblock) {
  path_ = folder_ + "/" + SegmentFileName(superblock.segment_number, "open");
}

Result<std::unique_ptr<SegmentWriter>> SegmentWriter::Create(FileSystem* files,
                                                             const std::string& folder,
                                                             const KvBlockLayout& layout,
                                                             const Superblock& superblock,
                                                             bool direct) {
  std::unique_ptr<SegmentWriter> writer(new SegmentWriter(files, folder, layout, superblock));
  DI_ASSIGN_OR_RETURN(writer->file_, files->Open(writer->path_, OpenMode::kCreate, direct));
  Status status = writer->file_->Allocate(layout.segment_bytes());
  if (status.ok()) status = WritePages(writer->file_.get(), AsBytes(superblock), 0);
  if (!status.ok()) {
    // A file without records is of no use to anybody.
    (void)files->Remove(writer->path_);
    return status;
  }
  return writer;
}

Result<IndexEntry> SegmentWriter::Append(std::span<const std::byte> record) {
  DI_CHECK(!full());
  const int64_t offset = layout_.RecordOffset(num_records());
  DI_RETURN_IF_ERROR(file_->WriteAt(record, offset));
  entries_.push_back(EntryOf(HeaderOf(record), static_cast<uint32_t>(superblock_.segment_number),
                             static_cast<uint32_t>(offset / kPageBytes)));
  return entries_.back();
}

Status SegmentWriter::Sync() {
  DI_RETURN_IF_ERROR(file_->SyncData());
  // The name must survive a power cut as well; once, before the first records count.
  if (num_synced_ == 0) DI_RETURN_IF_ERROR(files_->SyncDirectory(folder_));
  num_synced_ = entries_.size();
  return OkStatus();
}

Status SegmentWriter::Seal(uint64_t now_ns) {
  const auto synced = std::span(entries_).first(num_synced_);
  DI_ASSIGN_OR_RETURN(path_, WriteFooterAndRename(files_, file_.get(), path_, layout_, superblock_,
                                                  synced, now_ns));
  return OkStatus();
}

Superblock MakeSuperblock(const KvBlockLayout& layout, const Sha256Digest& namespace_id,
                          RetentionClass retention) {
  Superblock superblock;
  superblock.segment_pages = layout.segment_pages;
  superblock.format_id = layout.format_id;
  superblock.retention = static_cast<uint8_t>(retention);
  superblock.num_sections = static_cast<uint8_t>(layout.sections.size());
  superblock.record_pages = static_cast<uint16_t>(layout.record_pages());
  superblock.capacity = static_cast<uint32_t>(layout.segment_capacity());
  superblock.footer_pages = static_cast<uint32_t>(layout.footer_pages());
  superblock.namespace_id = namespace_id;
  std::ranges::copy(layout.sections, superblock.sections.begin());
  superblock.block_tokens = layout.block_tokens;
  return superblock;
}

Result<std::vector<IndexEntry>> ScanRecords(File* file, const KvBlockLayout& layout,
                                            const Superblock& superblock,
                                            std::span<const IndexEntry> logged) {
  const auto number = static_cast<uint32_t>(superblock.segment_number);
  const auto page_of = [&](int64_t place) {
    return static_cast<uint32_t>(layout.RecordOffset(place) / kPageBytes);
  };
  std::unordered_map<uint32_t, IndexEntry> by_page;
  uint32_t last_logged_page = 0;
  for (const IndexEntry& entry : logged) {
    if (entry.page >= page_of(layout.segment_capacity())) continue;
    by_page[entry.page] = entry;
    last_logged_page = std::max(last_logged_page, entry.page);
  }
  std::vector<IndexEntry> entries;
  PageBuffer record(layout.record_bytes());
  if (!record.ok()) return ResourceExhausted("no memory for a record");
  uint64_t next_sequence = 0;
  for (int64_t place = 0; place < layout.segment_capacity(); ++place) {
    const uint32_t page = page_of(place);
    if (const auto it = by_page.find(page); it != by_page.end()) {
      entries.push_back(it->second);
      continue;
    }
    DI_ASSIGN_OR_RETURN(const auto header, ReadFrame(file, layout, place, &record));
    // Several segments share the sequence of an epoch, so it may skip numbers but never go back.
    if (header && header->writer_id == superblock.writer_id && header->sequence >= next_sequence) {
      next_sequence = header->sequence + 1;
      entries.push_back(EntryOf(*header, number, page));
      continue;
    }
    if (page > last_logged_page) break;
    IndexEntry nameless;
    nameless.op = static_cast<uint8_t>(IndexOp::kAdd);
    nameless.segment_number = number;
    nameless.page = page;
    nameless.retention = superblock.retention;
    nameless.Seal();
    entries.push_back(nameless);
  }
  return entries;
}

Result<Superblock> ReadSuperblock(FileSystem* files, const std::string& path,
                                  const Sha256Digest& namespace_id) {
  DI_ASSIGN_OR_RETURN(const auto file, files->Open(path, OpenMode::kRead, false));
  return SuperblockOf(file.get(), path, namespace_id);
}

Result<SegmentContent> ReadSegment(FileSystem* files, const std::string& path,
                                   const Sha256Digest& namespace_id, const LoggedAdds& logged) {
  DI_ASSIGN_OR_RETURN(const auto file, files->Open(path, OpenMode::kRead, false));
  DI_ASSIGN_OR_RETURN(const Superblock superblock, SuperblockOf(file.get(), path, namespace_id));
  return ReadContent(file.get(), superblock, logged);
}

Result<SegmentContent> ReadSegment(FileSystem* files, const std::string& path,
                                   const Superblock& superblock, const LoggedAdds& logged) {
  DI_ASSIGN_OR_RETURN(const auto file, files->Open(path, OpenMode::kRead, false));
  return ReadContent(file.get(), superblock, logged);
}

Status RepairSuperblock(FileSystem* files, const std::string& path, const KvBlockLayout& layout,
                        const Sha256Digest& namespace_id, uint64_t segment_number,
                        const BucketOf& bucket_of) {
  DI_ASSIGN_OR_RETURN(const auto file, files->Open(path, OpenMode::kReadWrite, false));
  PageBuffer page(kPageBytes);
  if (!page.ok()) return ResourceExhausted("no memory for a page");
  DI_RETURN_IF_ERROR(ReadExactly(file.get(), page.bytes(), 0));
  const auto damaged = FromBytes<Superblock>(page.bytes());
  if (damaged.IsIntact()) return DataCorruption(path + ": the superblock is not this store's");
  ParsedFooter found;
  DI_ASSIGN_OR_RETURN(const bool any,
                      TryFooter(file.get(), layout, [&](std::span<const std::byte> footer) {
                        auto parsed = ParseAnyFooter(layout, footer);
                        const bool is_whole = parsed.ok();
                        if (is_whole) found = *std::move(parsed);
                        return is_whole;
                      }));
  if (!any || found.entries.empty() || found.trailer.segment_number != segment_number ||
      found.entries[0].retention >= kNumRetentionClasses) {
    return DataCorruption(path + ": neither superblock nor footer");
  }
  if (AnyAbsoluteDeadline(file.get(), layout, found.entries.size())) {
    return DataCorruption(path + ": no deadline for records that have one of their own");
  }
  const auto retention = static_cast<RetentionClass>(found.entries[0].retention);
  Superblock superblock = MakeSuperblock(layout, namespace_id, retention);
  superblock.writer_id = found.trailer.writer_id;
  superblock.segment_number = segment_number;
  superblock.bucket_hour = bucket_of(retention, static_cast<int64_t>(found.trailer.sealed_ns));
  superblock.created_ns = damaged.created_ns;
  if (superblock.IdentityCrc() != found.trailer.superblock_crc) {
    // Its own time is lost: no earlier one than that of the seal is known. The footer names it.
    superblock.created_ns = found.trailer.sealed_ns;
    DI_RETURN_IF_ERROR(WritePages(
        file.get(), BuildFooter(layout, superblock, found.entries, found.trailer.sealed_ns),
        layout.footer_offset()));
    DI_RETURN_IF_ERROR(file->SyncData());
  }
  superblock.Seal();
  DI_RETURN_IF_ERROR(WritePages(file.get(), AsBytes(superblock), 0));
  return file->SyncData();
}

Result<std::string> SealScanned(FileSystem* files, const std::string& path,
                                const SegmentContent& content, uint64_t now_ns) {
  DI_ASSIGN_OR_RETURN(const auto file, files->Open(path, OpenMode::kReadWrite, false));
  return WriteFooterAndRename(files, file.get(), path, content.layout, content.superblock,
                              content.entries, now_ns);
}

Status RewriteBucket(FileSystem* files, const std::string& path, Superblock* superblock,
                     uint64_t bucket_hour) {
  DI_ASSIGN_OR_RETURN(const auto file, files->Open(path, OpenMode::kReadWrite, false));
  superblock->bucket_hour = bucket_hour;
  superblock->Seal();
  DI_RETURN_IF_ERROR(WritePages(file.get(), AsBytes(*superblock), 0));
  return file->SyncData();
}

}  // namespace deepinfer
