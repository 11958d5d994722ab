#include "kvcache/store_export.h"

#include <fmt/core.h>
#include <zstd.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/crc32c.h"
#include "kvcache/index_log.h"
#include "kvcache/page_buffer.h"
#include "kvcache/record_cipher.h"

namespace deepinfer {
namespace {

constexpr int64_t kProgressRecords = 256;

// A file that is written from begin to end, compressed.
class CompressedWriter {
 public:
  CompressedWriter(std::unique_ptr<File> file, ZSTD_CCtx* context)
      : file_(std::move(file)), context_(context, ZSTD_freeCCtx), out_(ZSTD_CStreamOutSize()) {
    ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_checksumFlag, 1);
  }

  Status Write(std::span<const std::byte> bytes) { return Push(bytes, ZSTD_e_continue); }
  Status Finish() {
    DI_RETURN_IF_ERROR(Push({}, ZSTD_e_end));
    return file_->SyncData();
  }
  int64_t size() const { return offset_; }

 private:
  Status Push(std::span<const std::byte> bytes, ZSTD_EndDirective directive) {
    ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
    for (;;) {
      ZSTD_outBuffer out{out_.data(), out_.size(), 0};
      const size_t left = ZSTD_compressStream2(context_.get(), &out, &in, directive);
      if (ZSTD_isError(left) != 0) return Internal(ZSTD_getErrorName(left));
      DI_RETURN_IF_ERROR(file_->WriteAt(std::span(out_).first(out.pos), offset_));
      offset_ += static_cast<int64_t>(out.pos);
      const bool done = directive == ZSTD_e_end ? left == 0 : in.pos == in.size;
      if (done) return OkStatus();
    }
  }

  std::unique_ptr<File> file_;
  std::unique_ptr<ZSTD_CCtx, decltype(&ZSTD_freeCCtx)> context_;
  std::vector<std::byte> out_;
  int64_t offset_ = 0;
};

// What a namespace's segments hold of the wanted blocks.
struct Listed {
  const SegmentView* segment;
  size_t record;
};

// An error when a log cannot be read: it may name blocks that were erased.
Result<std::vector<Listed>> ListWanted(FileSystem* files, const NamespaceView& view,
                                       const std::optional<std::vector<BlockKey>>& keys) {
  std::unordered_set<BlockKey, BlockKeyHash> wanted;
  if (keys) wanted.insert(keys->begin(), keys->end());
  std::unordered_map<std::string, LogErasures> erased;  // by folder
  std::unordered_set<BlockKey, BlockKeyHash> seen;
  std::vector<Listed> listed;
  for (const SegmentView& segment : view.segments) {
    if (!segment.content || segment.extension == "bad") continue;
    const auto [it, is_new] = erased.try_emplace(segment.folder);
    if (is_new) {
      DI_ASSIGN_OR_RETURN(const LogContent log,
                          ReadIndexLog(files, view.folder + "/" + segment.folder));
      it->second = LogErasures(log.entries);
    }
    for (size_t i = 0; i < segment.content->entries.size(); ++i) {
      const IndexEntry& entry = segment.content->entries[i];
      if (keys && !wanted.contains(entry.key)) continue;
      if (IsNameless(entry) || it->second.Mean(entry)) continue;
      if (seen.insert(entry.key).second) listed.push_back({&segment, i});
    }
  }
  return listed;
}

// The page that says of which namespace and layout the records are: the superblock of no segment.
Superblock ExportSuperblock(const Superblock& of_segment) {
  Superblock superblock = of_segment;
  superblock.retention = 0;
  superblock.writer_id = 0;
  superblock.segment_number = 0;
  superblock.created_ns = 0;
  superblock.bucket_hour = 0;
  superblock.Seal();
  return superblock;
}

Status WriteRecords(FileSystem* files, const std::vector<Listed>& listed,
                    const KvBlockLayout& layout, CompressedWriter* writer, ExportTotals* totals,
                    const ExportProgress& progress) {
  PageBuffer record(layout.record_bytes());
  if (!record.ok()) return ResourceExhausted("no memory for a record");
  std::unique_ptr<File> file;
  const SegmentView* open = nullptr;
  for (size_t i = 0; i < listed.size(); ++i) {
    const auto& [segment, place] = listed[i];
    if (open != segment) {
      auto opened = files->Open(segment->path, OpenMode::kRead, false);
      file = opened.ok() ? *std::move(opened) : nullptr;
      open = segment;
    }
    if (file == nullptr) continue;  // removed meanwhile
    const IndexEntry& entry = segment->content->entries[place];
    const Status read =
        ReadExactly(file.get(), record.bytes(), layout.RecordOffset(static_cast<int64_t>(place)));
    if (!read.ok() ||
        VerifyRecord(layout, record.bytes(), entry.key, entry.block_number) != RecordFault::kNone) {
      ++totals->bad;
      continue;
    }
    if ((HeaderOf(record.bytes()).flags & kRecordAbsoluteDeadline) != 0) continue;
    DI_RETURN_IF_ERROR(writer->Write(record.bytes()));
    ++totals->records;
    totals->raw_bytes += layout.record_bytes();
    if ((i + 1) % kProgressRecords == 0 || i + 1 == listed.size()) {
      progress(static_cast<int64_t>(i) + 1, static_cast<int64_t>(listed.size()));
    }
  }
  return OkStatus();
}

}  // namespace

void ExportTrailer::Seal() { crc = Crc32c(AsBytes(*this).first(offsetof(ExportTrailer, crc))); }

bool ExportTrailer::IsIntact() const {
  return magic == kExportMagic && crc == Crc32c(AsBytes(*this).first(offsetof(ExportTrailer, crc)));
}

Result<ExportTotals> ExportBlocks(FileSystem* files, const NamespaceView& view,
                                  const std::optional<std::vector<BlockKey>>& keys,
                                  const std::string& path, const ExportProgress& progress) {
  DI_ASSIGN_OR_RETURN(const auto listed, ListWanted(files, view, keys));
  if (listed.empty()) return NotFound("nothing to export");
  const SegmentContent& first = *listed.front().segment->content;
  const std::string part = path + ".part";
  if (const Status removed = files->Remove(part);
      !removed.ok() && removed.code() != StatusCode::kNotFound) {
    return removed;
  }
  DI_ASSIGN_OR_RETURN(auto file, files->Open(part, OpenMode::kCreate, false));
  CompressedWriter writer(std::move(file), ZSTD_createCCtx());
  ExportTotals totals;
  const auto write = [&]() -> Status {
    DI_RETURN_IF_ERROR(writer.Write(AsBytes(ExportSuperblock(first.superblock))));
    DI_RETURN_IF_ERROR(WriteRecords(files, listed, first.layout, &writer, &totals, progress));
    ExportTrailer trailer;
    trailer.record_count = static_cast<uint64_t>(totals.records);
    trailer.Seal();
    DI_RETURN_IF_ERROR(writer.Write(AsBytes(trailer)));
    DI_RETURN_IF_ERROR(writer.Finish());
    return files->Rename(part, path);
  };
  if (const Status status = write(); !status.ok()) {
    (void)files->Remove(part);
    return status;
  }
  totals.bytes = writer.size();
  return totals;
}

// A compressed file read from begin to end.
struct BlockImport::Stream {
  explicit Stream(std::unique_ptr<File> opened) : file(std::move(opened)) {}

  // All of `into`, or data_corruption when the stream ends before.
  Status Read(std::span<std::byte> into) {
    ZSTD_outBuffer out{into.data(), into.size(), 0};
    while (out.pos < out.size) {
      if (input.pos == input.size) {
        DI_ASSIGN_OR_RETURN(const size_t read, file->ReadAt(buffer, offset));
        if (read == 0) return DataCorruption("the file ends too early");
        offset += static_cast<int64_t>(read);
        input = {buffer.data(), read, 0};
      }
      const size_t result = ZSTD_decompressStream(context.get(), &out, &input);
      if (ZSTD_isError(result) != 0) return DataCorruption(ZSTD_getErrorName(result));
    }
    return OkStatus();
  }

  std::unique_ptr<File> file;
  std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)> context{ZSTD_createDCtx(), ZSTD_freeDCtx};
  std::vector<std::byte> buffer = std::vector<std::byte>(ZSTD_DStreamInSize());
  ZSTD_inBuffer input{nullptr, 0, 0};
  int64_t offset = 0;
};

BlockImport::BlockImport(std::unique_ptr<Stream> stream) : stream_(std::move(stream)) {}
BlockImport::~BlockImport() = default;

Result<std::unique_ptr<BlockImport>> BlockImport::Open(FileSystem* files, const std::string& path) {
  DI_ASSIGN_OR_RETURN(auto file, files->Open(path, OpenMode::kRead, false));
  std::unique_ptr<BlockImport> import(new BlockImport(std::make_unique<Stream>(std::move(file))));
  Superblock& superblock = import->superblock_;
  DI_RETURN_IF_ERROR(
      import->stream_->Read({reinterpret_cast<std::byte*>(&superblock), sizeof(superblock)})
          .Annotate(path));
  if (!superblock.IsIntact()) return DataCorruption(path + " is not an export of this version");
  DI_ASSIGN_OR_RETURN(import->layout_, superblock.Layout());
  return import;
}

void BlockImport::Take(KvStore* store, std::span<std::byte> record, ImportTotals* totals) const {
  ++totals->records;
  const RecordHeader header = HeaderOf(record);
  if (VerifyRecord(layout_, record, header.key, header.block_number) != RecordFault::kNone) {
    ++totals->bad;
    return;
  }
  if ((header.flags & kRecordEncrypted) != 0) {
    const auto key = store->context().keys->Find(header.tenant_tag);
    if (!key) {
      ++totals->refused;
      return;
    }
    if (!DecryptRecord(layout_, *key, record)) {
      ++totals->bad;
      return;
    }
  }
  PublishRequest request;
  request.key = header.key;
  std::ranges::copy(header.parent_prefix, request.parent.bytes.begin());
  request.block_number = header.block_number;
  request.retention = static_cast<RetentionClass>(header.retention);
  request.tenant_tag = header.tenant_tag;
  request.replay_gen = header.replay_gen;
  request.has_generated = (header.flags & kRecordHasGenerated) != 0;
  request.public_scope = (header.flags & kRecordPublicScope) != 0;
  switch (store->Publish(request, PayloadOf(layout_, record))) {
    case PublishResult::kQueued:
      ++totals->imported;
      break;
    case PublishResult::kExists:
      ++totals->existing;
      break;
    default:
      ++totals->refused;
  }
}

Result<ImportTotals> BlockImport::Run(KvStore* store, const ExportProgress& progress) {
  PageBuffer record(layout_.record_bytes());
  if (!record.ok()) return ResourceExhausted("no memory for a record");
  ImportTotals totals;
  int64_t queued_bytes = 0;
  // A record and the trailer begin with different magic numbers.
  const auto head = record.bytes().first(sizeof(ExportTrailer));
  const auto read_all = [&]() -> Status {
    for (;;) {
      DI_RETURN_IF_ERROR(stream_->Read(head));
      if (const auto trailer = FromBytes<ExportTrailer>(head); trailer.magic == kExportMagic) {
        const bool whole =
            trailer.IsIntact() && trailer.record_count == static_cast<uint64_t>(totals.records);
        return whole ? OkStatus() : DataCorruption("records are missing");
      }
      DI_RETURN_IF_ERROR(stream_->Read(record.bytes().subspan(head.size())));
      Take(store, record.bytes(), &totals);
      queued_bytes += layout_.record_bytes();
      if (queued_bytes >= store->context().options.write_queue_bytes / 2) {
        store->Flush(false);
        queued_bytes = 0;
      }
      if (totals.records % kProgressRecords == 0) progress(totals.records, 0);
    }
  };
  const Status status = read_all();
  store->Flush(true);
  DI_RETURN_IF_ERROR(status);
  progress(totals.records, totals.records);
  return totals;
}

}  // namespace deepinfer
