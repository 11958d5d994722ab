// MappedFile: a read-only memory mapping of one regular file.
// Thread rule: const methods are safe from any thread; moving and destroying are the owner's.
// The mapping stays valid when the file is renamed or removed, but a file that another process
// truncates faults on access: replace weight files by rename, never in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "base/result.h"

namespace deepinfer {

// How the pages will be used (madvise).
enum class MapAdvice : uint8_t { kNormal, kSequential, kRandom, kWillNeed, kHugePages };

// Called with the bytes read so far and in total; false stops the read. May be empty.
using PrefaultProgress = std::function<bool(uint64_t done_bytes, uint64_t total_bytes)>;

class MappedFile {
 public:
  // Errors: not_found, data_corruption (not a regular file), unavailable (the system refuses);
  // each names the path. An empty file maps to an empty span.
  static Result<MappedFile> Open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

  // A hint for the whole file; an unsupported hint is not an error.
  void Advise(MapAdvice advice) const;

  // Advises huge pages. Pages that came into the file cache before are small and would stay so:
  // where the file system has huge ones, small ones are given back to be read anew. For files that
  // are read all the time; another process that maps them keeps what it has.
  void UseHugePages() const;
  // Bytes of the mapping that lie in huge pages.
  uint64_t HugePageBytes() const;

  // Reads every page into memory, chunk_bytes at a time (rounded up to whole pages), reporting
  // after each chunk. Errors: cancelled; data_corruption when the file shrank since Open, where
  // the kernel can tell.
  Status Prefault(uint64_t chunk_bytes, const PrefaultProgress& progress) const;

 private:
  MappedFile(std::string path, const std::byte* data, size_t size)
      : path_(std::move(path)), data_(data), size_(size) {}
  void Unmap();
  // Gives pages of the file back, in the mapping and in the file cache.
  void DropPages(uint64_t offset, uint64_t size) const;

  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace deepinfer
