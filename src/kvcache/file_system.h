// The file operations of the store, behind an interface so that tests inject faults and power cuts
// into the same code paths.
//
// Errors: not_found for files that are gone (also on another node), resource_exhausted for a full
// disk or quota, unavailable for every other failure of the system.
// Thread rule: any thread; a File takes concurrent reads, but one writer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace deepinfer {

class File {
 public:
  virtual ~File() = default;

  // Bytes read; fewer than asked for only at the end of the file.
  virtual Result<size_t> ReadAt(std::span<std::byte> into, int64_t offset) = 0;
  // All bytes or an error, after which any part of them may have been written.
  virtual Status WriteAt(std::span<const std::byte> bytes, int64_t offset) = 0;
  // Returns when everything written before is on stable storage.
  virtual Status SyncData() = 0;
  virtual Result<int64_t> Size() = 0;
  // Reserves space so that later writes up to size_bytes do not fail for lack of it; a hint where
  // the file system cannot.
  virtual Status Allocate(int64_t size_bytes) = 0;
  // For system calls that the interface does not cover; -1 when there is no such number.
  virtual int descriptor() const { return -1; }
};

enum class OpenMode : uint8_t {
  kRead,
  kReadWrite,  // of an existing file
  kCreate,     // read and write; fails when the file exists
  kCreateOrOpen,
  kCreatePrivate,  // like kCreate, readable by this user only
};

struct FileInfo {
  int64_t size_bytes = 0;
  int64_t modified_ns = 0;  // Unix, by the file system's clock
  uint64_t inode = 0;
  uint32_t permissions = 0;  // the lowest nine bits of the mode
};

// Held until destroyed or the process ends.
class FileLock {
 public:
  virtual ~FileLock() = default;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // direct: bypass the page cache where possible; offsets, sizes and buffers are then multiples of
  // a page.
  virtual Result<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode,
                                             bool direct) = 0;
  // True: made. False: it was there already.
  virtual Result<bool> MakeDirectory(const std::string& path) = 0;
  virtual Status Rename(const std::string& from, const std::string& to) = 0;
  virtual Status Remove(const std::string& path) = 0;
  virtual Status RemoveDirectory(const std::string& path) = 0;
  // Names without the folder, sorted.
  virtual Result<std::vector<std::string>> List(const std::string& folder) = 0;
  // Makes created, renamed and removed names of the folder durable.
  virtual Status SyncDirectory(const std::string& folder) = 0;
  virtual Result<FileInfo> Stat(const std::string& path) = 0;
  // resource_exhausted when another process holds it. Creates the file.
  virtual Result<std::unique_ptr<FileLock>> Lock(const std::string& path) = 0;
};

// The real one.
std::unique_ptr<FileSystem> MakePosixFileSystem();

// The whole file. At most max_bytes, else data_corruption.
Result<std::vector<std::byte>> ReadWholeFile(FileSystem* files, const std::string& path,
                                             int64_t max_bytes);
// Puts the bytes in the place of the file: whatever happens, there is the old one or the new one as
// a whole. mode: kCreate or kCreatePrivate. One process at a time.
Status ReplaceFile(FileSystem* files, const std::string& path, std::span<const std::byte> bytes,
                   OpenMode mode);
// What a read returned is believed to be wrong, or to be the end of a file, only after so many.
inline constexpr int kReadTries = 3;

// As many bytes from offset as the file has, at most into.size(); unavailable when reads end before
// the size that the file reports. Reads on behind it: on network file systems that size lags.
Result<size_t> ReadUpTo(File* file, std::span<std::byte> into, int64_t offset);
// Exactly into.size() bytes, or data_corruption when the file is shorter.
Status ReadExactly(File* file, std::span<std::byte> into, int64_t offset);

}  // namespace deepinfer
