// A segment on disk: writing one record after the other, sealing, and reading back what a segment
// holds, whatever state its writer left it in (kv_format.md §11).
//
// Thread rule: a SegmentWriter belongs to the writer; reading functions are pure.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvcache/file_system.h"
#include "kvcache/record.h"

namespace deepinfer {

// "seg-0000000007.open" while it is written, ".seg" when sealed, ".bad" in quarantine.
std::string SegmentFileName(uint64_t number, std::string_view extension);
// The number and extension of such a name.
struct SegmentName {
  uint64_t number = 0;
  std::string extension;
};
std::optional<SegmentName> ParseSegmentFileName(std::string_view name);

// A superblock of this layout; writer, number, times and bucket are for the caller, who seals it.
Superblock MakeSuperblock(const KvBlockLayout& layout, const Sha256Digest& namespace_id,
                          RetentionClass retention);

class SegmentWriter {
 public:
  // Creates <folder>/<name>.open with space for a whole segment and its superblock.
  static Result<std::unique_ptr<SegmentWriter>> Create(FileSystem* files, const std::string& folder,
                                                       const KvBlockLayout& layout,
                                                       const Superblock& superblock, bool direct);

  // Writes a sealed record at the next place; its index entry. On an error the place stays free.
  // record is page-aligned in memory.
  Result<IndexEntry> Append(std::span<const std::byte> record);
  // Makes appended records durable.
  Status Sync();
  // Writes footer and superblock, syncs, renames to .seg and syncs the folder. Only entries that a
  // Sync covered are listed.
  Status Seal(uint64_t now_ns);

  int64_t num_records() const { return static_cast<int64_t>(entries_.size()); }
  bool full() const { return num_records() >= layout_.segment_capacity(); }
  const Superblock& superblock() const { return superblock_; }
  const std::string& path() const { return path_; }

 private:
  SegmentWriter(FileSystem* files, std::string folder, const KvBlockLayout& layout,
                const Superblock& superblock);

  FileSystem* files_;
  std::string folder_;
  std::string path_;
  KvBlockLayout layout_;
  Superblock superblock_;
  std::unique_ptr<File> file_;
  std::vector<IndexEntry> entries_;
  size_t num_synced_ = 0;
};

struct SegmentContent {
  Superblock superblock;
  KvBlockLayout layout;
  std::vector<IndexEntry> entries;  // one per record, in order of their places
  bool from_footer = false;         // else the records' frames were scanned
  uint64_t sealed_ns = 0;           // 0 when scanned
};

// The superblock at the begin of `path`, with a layout that makes sense. Errors like ReadSegment.
Result<Superblock> ReadSuperblock(FileSystem* files, const std::string& path,
                                  const Sha256Digest& namespace_id);

// What the index log of the folder says was added to a segment; asked for when the footer does not
// tell.
using LoggedAdds = std::function<Result<std::vector<IndexEntry>>()>;
inline Result<std::vector<IndexEntry>> NoLoggedAdds() { return std::vector<IndexEntry>{}; }

// What the segment at `path` holds. not_found when it is gone, unsupported for another version,
// data_corruption when not even the superblock can be believed. What fails a check is read again
// before that counts.
Result<SegmentContent> ReadSegment(FileSystem* files, const std::string& path,
                                   const Sha256Digest& namespace_id,
                                   const LoggedAdds& logged = NoLoggedAdds);

// The same with a superblock that is known.
Result<SegmentContent> ReadSegment(FileSystem* files, const std::string& path,
                                   const Superblock& superblock, const LoggedAdds& logged);

// The records of a segment without a footer: what the log lists, whose group was synced before,
// and frames that continue the writer's sequence, in the order of their places. A place that
// neither tells anything of, in front of a logged one, gets an entry without a key.
Result<std::vector<IndexEntry>> ScanRecords(File* file, const KvBlockLayout& layout,
                                            const Superblock& superblock,
                                            std::span<const IndexEntry> logged);

// The entry of a place that holds no record which can be named.
inline bool IsNameless(const IndexEntry& entry) { return entry.key == BlockKey{}; }

// A superblock that fails its check is made again from its footer, and written: a bucket was being
// moved when the power went, or a byte has changed. bucket_of gives the bucket of a class for
// records complete at a time (Unix ns). data_corruption when the footer cannot be believed either.
using BucketOf = std::function<uint64_t(RetentionClass, int64_t)>;
Status RepairSuperblock(FileSystem* files, const std::string& path, const KvBlockLayout& layout,
                        const Sha256Digest& namespace_id, uint64_t segment_number,
                        const BucketOf& bucket_of);

// Gives a scanned segment its footer and its sealed name; the new path.
Result<std::string> SealScanned(FileSystem* files, const std::string& path,
                                const SegmentContent& content, uint64_t now_ns);

// Replaces the bucket in place.
Status RewriteBucket(FileSystem* files, const std::string& path, Superblock* superblock,
                     uint64_t bucket_hour);

}  // namespace deepinfer
