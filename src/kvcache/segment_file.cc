#include "kvcache/segment_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
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
  DI_RETURN_IF_ERROR(ReadExactly(file, page.bytes(), 0).Annotate(path));
  const auto superblock = FromBytes<Superblock>(page.bytes());
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

// Footer, durable, then the sealed name, durable.
Result<std::string> WriteFooterAndRename(FileSystem* files, File* file, const std::string& path,
                                         const KvBlockLayout& layout, const Superblock& superblock,
                                         std::span<const IndexEntry> entries, uint64_t now_ns) {
  DI_RETURN_IF_ERROR(
      WritePages(file, BuildFooter(layout, superblock, entries, now_ns), layout.footer_offset()));
  DI_RETURN_IF_ERROR(file->SyncData());
  const std::string folder = FolderOf(path);
  const std::string sealed = folder + "/" + SegmentFileName(superblock.segment_number, "seg");
  DI_RETURN_IF_ERROR(files->Rename(path, sealed));
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

Result<std::vector<IndexEntry>> ScanRecords(File* file, const KvBlockLayout& layout,
                                            const Superblock& superblock) {
  std::vector<IndexEntry> entries;
  PageBuffer record(layout.record_bytes());
  if (!record.ok()) return ResourceExhausted("no memory for a record");
  uint64_t next_sequence = 0;
  for (int64_t place = 0; place < layout.segment_capacity(); ++place) {
    DI_ASSIGN_OR_RETURN(const size_t read,
                        file->ReadAt(record.bytes(), layout.RecordOffset(place)));
    if (read < record.bytes().size()) break;
    if (CheckRecordFrame(layout, record.bytes()) != RecordFault::kNone) break;
    const RecordHeader header = HeaderOf(record.bytes());
    if (header.writer_id != superblock.writer_id) break;
    // Several segments share the sequence of an epoch, so it may skip numbers but never go back.
    if (header.sequence < next_sequence) break;
    next_sequence = header.sequence + 1;
    entries.push_back(EntryOf(header, static_cast<uint32_t>(superblock.segment_number),
                              static_cast<uint32_t>(layout.RecordOffset(place) / kPageBytes)));
  }
  return entries;
}

Result<Superblock> ReadSuperblock(FileSystem* files, const std::string& path,
                                  const Sha256Digest& namespace_id) {
  DI_ASSIGN_OR_RETURN(const auto file, files->Open(path, OpenMode::kRead, false));
  return SuperblockOf(file.get(), path, namespace_id);
}

Result<SegmentContent> ReadSegment(FileSystem* files, const std::string& path,
                                   const Sha256Digest& namespace_id) {
  DI_ASSIGN_OR_RETURN(const auto file, files->Open(path, OpenMode::kRead, false));
  SegmentContent content;
  DI_ASSIGN_OR_RETURN(content.superblock, SuperblockOf(file.get(), path, namespace_id));
  DI_ASSIGN_OR_RETURN(content.layout, content.superblock.Layout());
  const KvBlockLayout& layout = content.layout;

  PageBuffer footer(layout.footer_pages() * kPageBytes);
  if (!footer.ok()) return ResourceExhausted("no memory for a footer");
  DI_ASSIGN_OR_RETURN(const size_t read, file->ReadAt(footer.bytes(), layout.footer_offset()));
  if (read == footer.bytes().size()) {
    auto entries = ParseFooter(layout, content.superblock, footer.bytes());
    if (entries.ok()) {
      content.entries = *std::move(entries);
      content.from_footer = true;
      content.sealed_ns =
          FromBytes<FooterTrailer>(footer.bytes().last(sizeof(FooterTrailer))).sealed_ns;
      return content;
    }
  }
  DI_ASSIGN_OR_RETURN(content.entries, ScanRecords(file.get(), layout, content.superblock));
  return content;
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
