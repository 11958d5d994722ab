// Stored blocks as one file, to be carried to another store of the same namespace
// (kv_format.md §23): a zstd stream of a superblock page, whole records and a trailer.
// Thread rule: pure functions on the file system; an import belongs to one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvcache/kv_store.h"
#include "kvcache/store_inspector.h"

namespace deepinfer {

inline constexpr uint64_t kExportMagic = MagicNumber("DIKVEXP1");

// Behind the last record: the file is whole.
struct ExportTrailer {
  uint64_t magic = kExportMagic;
  uint64_t record_count = 0;
  std::array<uint8_t, 44> reserved{};
  uint32_t crc = 0;  // of all bytes before it

  void Seal();
  bool IsIntact() const;
};
static_assert(sizeof(ExportTrailer) == 64 && offsetof(ExportTrailer, crc) == 60);

// Called now and then with the records done and, as far as it is known, their total.
using ExportProgress = std::function<void(int64_t done, int64_t total)>;

struct ExportTotals {
  int64_t records = 0;
  int64_t bad = 0;        // failed a check; left out
  int64_t bytes = 0;      // of the file
  int64_t raw_bytes = 0;  // before compression
};

// Writes the blocks of a namespace to `path`: those in `keys`, or all without it. Each once;
// erased blocks and blocks with a deadline of their own are left out. The file appears when it is
// whole. not_found when the namespace holds nothing to export.
Result<ExportTotals> ExportBlocks(FileSystem* files, const NamespaceView& view,
                                  const std::optional<std::vector<BlockKey>>& keys,
                                  const std::string& path, const ExportProgress& progress);

struct ImportTotals {
  int64_t records = 0;
  int64_t imported = 0;
  int64_t existing = 0;
  int64_t bad = 0;      // failed a check
  int64_t refused = 0;  // no key, or the store did not take them
};

// Reads an exported file record by record.
class BlockImport {
 public:
  // Opens the file and reads which namespace and layout it is of. data_corruption when it does not
  // say.
  static Result<std::unique_ptr<BlockImport>> Open(FileSystem* files, const std::string& path);
  ~BlockImport();
  BlockImport(const BlockImport&) = delete;
  BlockImport& operator=(const BlockImport&) = delete;

  const Sha256Digest& namespace_id() const { return superblock_.namespace_id; }
  const KvBlockLayout& layout() const { return layout_; }

  // Verifies each record like a read and publishes it as if written now. The store has this
  // namespace and layout and no background threads. data_corruption when the file ends too early;
  // what came before is stored.
  Result<ImportTotals> Run(KvStore* store, const ExportProgress& progress);

 private:
  struct Stream;
  explicit BlockImport(std::unique_ptr<Stream> stream);
  // Publishes one record.
  void Take(KvStore* store, std::span<std::byte> record, ImportTotals* totals) const;

  std::unique_ptr<Stream> stream_;
  Superblock superblock_;
  KvBlockLayout layout_;
};

}  // namespace deepinfer
