#include "kvcache/file_system.h"

namespace deepinfer {

Result<size_t> ReadUpTo(File* file, std::span<std::byte> into, int64_t offset) {
  size_t done = 0;
  for (int tries = 1;; ++tries) {
    const auto read = file->ReadAt(into.subspan(done), offset + static_cast<int64_t>(done));
    if (!read.ok() && tries == kReadTries) return read.status();
    if (!read.ok()) continue;
    done += *read;
    if (done == into.size()) return done;
    DI_ASSIGN_OR_RETURN(const int64_t size, file->Size());
    if (offset + static_cast<int64_t>(done) >= size) return done;
    if (tries == kReadTries) return Unavailable("read in part");
  }
}

Status ReadExactly(File* file, std::span<std::byte> into, int64_t offset) {
  DI_ASSIGN_OR_RETURN(const size_t size, ReadUpTo(file, into, offset));
  return size == into.size() ? OkStatus() : DataCorruption("the file is too short");
}

Result<std::vector<std::byte>> ReadWholeFile(FileSystem* files, const std::string& path,
                                             int64_t max_bytes) {
  DI_ASSIGN_OR_RETURN(const auto file, files->Open(path, OpenMode::kRead, false));
  DI_ASSIGN_OR_RETURN(const int64_t size, file->Size());
  if (size > max_bytes) return DataCorruption(path + " is too large");
  std::vector<std::byte> bytes(static_cast<size_t>(size));
  // Files only grow here. What follows a log that seems to end early would be taken for free room.
  DI_ASSIGN_OR_RETURN(const size_t read, ReadUpTo(file.get(), bytes, 0));
  if (read < bytes.size()) return Unavailable(path + ": read in part");
  return bytes;
}

Status ReplaceFile(FileSystem* files, const std::string& path, std::span<const std::byte> bytes,
                   OpenMode mode) {
  const std::string next = path + ".new";
  // A crash may have left one.
  if (const Status removed = files->Remove(next);
      !removed.ok() && removed.code() != StatusCode::kNotFound) {
    return removed;
  }
  {
    DI_ASSIGN_OR_RETURN(const auto file, files->Open(next, mode, false));
    DI_RETURN_IF_ERROR(file->WriteAt(bytes, 0));
    DI_RETURN_IF_ERROR(file->SyncData());
  }
  DI_RETURN_IF_ERROR(files->Rename(next, path));
  const size_t slash = path.rfind('/');
  return files->SyncDirectory(slash == std::string::npos ? "."
                              : slash == 0               ? "/"
                                                         : path.substr(0, slash));
}

}  // namespace deepinfer
