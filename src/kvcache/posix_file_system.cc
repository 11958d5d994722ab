#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "kvcache/file_system.h"

namespace deepinfer {
namespace {

Status SystemError(const char* what, const std::string& path, int error) {
  std::string message = fmt::format("{} {}: {}", what, path, std::strerror(error));
  // ESTALE: a peer removed the file under us on a network file system.
  if (error == ENOENT || error == ESTALE) return NotFound(std::move(message));
  if (error == ENOSPC || error == EDQUOT || error == EMFILE || error == ENFILE) {
    return ResourceExhausted(std::move(message));
  }
  return Unavailable(std::move(message));
}

// Repeats a call that a signal interrupted.
template <typename Call>
auto Retry(Call call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  int number() const { return number_; }

 private:
  int number_;
};

class PosixFile final : public File {
 public:
  PosixFile(Descriptor descriptor, std::string path)
      : descriptor_(std::move(descriptor)), path_(std::move(path)) {}

  Result<size_t> ReadAt(std::span<std::byte> into, int64_t offset) override {
    size_t done = 0;
    while (done < into.size()) {
      const ssize_t count = Retry([&] {
        return pread(descriptor(), into.data() + done, into.size() - done,
                     offset + static_cast<int64_t>(done));
      });
      if (count < 0) return SystemError("read", path_, errno);
      if (count == 0) break;
      done += static_cast<size_t>(count);
    }
    return done;
  }

  Status WriteAt(std::span<const std::byte> bytes, int64_t offset) override {
    while (!bytes.empty()) {
      const ssize_t count =
          Retry([&] { return pwrite(descriptor(), bytes.data(), bytes.size(), offset); });
      if (count <= 0) return SystemError("write", path_, count < 0 ? errno : EIO);
      bytes = bytes.subspan(static_cast<size_t>(count));
      offset += count;
    }
    return OkStatus();
  }

  Status SyncData() override {
    if (Retry([&] { return fdatasync(descriptor()); }) != 0) {
      return SystemError("sync", path_, errno);
    }
    return OkStatus();
  }

  Result<int64_t> Size() override {
    struct stat info {};
    if (fstat(descriptor(), &info) != 0) return SystemError("stat", path_, errno);
    return int64_t{info.st_size};
  }

  Status Allocate(int64_t size_bytes) override {
    if (Retry([&] { return fallocate(descriptor(), 0, 0, size_bytes); }) == 0) return OkStatus();
    if (errno == EOPNOTSUPP || errno == ENOSYS) return OkStatus();
    return SystemError("allocate", path_, errno);
  }

  int descriptor() const override { return descriptor_.number(); }

 private:
  Descriptor descriptor_;
  std::string path_;
};

class PosixLock final : public FileLock {
 public:
  explicit PosixLock(Descriptor descriptor) : descriptor_(std::move(descriptor)) {}

 private:
  Descriptor descriptor_;  // closing it gives the lock back
};

class PosixFileSystem final : public FileSystem {
 public:
  Result<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode, bool direct) override {
    int flags = O_CLOEXEC;
    switch (mode) {
      case OpenMode::kRead:
        flags |= O_RDONLY;
        break;
      case OpenMode::kReadWrite:
        flags |= O_RDWR;
        break;
      case OpenMode::kCreate:
        flags |= O_RDWR | O_CREAT | O_EXCL;
        break;
      case OpenMode::kCreateOrOpen:
        flags |= O_RDWR | O_CREAT;
        break;
      case OpenMode::kCreatePrivate:
        flags |= O_RDWR | O_CREAT | O_EXCL;
        break;
    }
    const mode_t permissions = mode == OpenMode::kCreatePrivate ? 0600 : 0644;
    int number = OpenPath(path, direct ? flags | O_DIRECT : flags, permissions);
    // File systems without direct access say so at open.
    if (number < 0 && direct && errno == EINVAL) number = OpenPath(path, flags, permissions);
    if (number < 0) return SystemError("open", path, errno);
    return std::unique_ptr<File>(std::make_unique<PosixFile>(Descriptor(number), path));
  }

  Result<bool> MakeDirectory(const std::string& path) override {
    if (mkdir(path.c_str(), 0755) == 0) return true;
    if (errno == EEXIST) return false;
    return SystemError("make folder", path, errno);
  }

  Status Rename(const std::string& from, const std::string& to) override {
    return rename(from.c_str(), to.c_str()) == 0 ? OkStatus() : SystemError("rename", from, errno);
  }

  Status Remove(const std::string& path) override {
    return unlink(path.c_str()) == 0 ? OkStatus() : SystemError("remove", path, errno);
  }

  Status RemoveDirectory(const std::string& path) override {
    return rmdir(path.c_str()) == 0 ? OkStatus() : SystemError("remove folder", path, errno);
  }

  Result<std::vector<std::string>> List(const std::string& folder) override {
    DIR* stream = opendir(folder.c_str());
    if (stream == nullptr) return SystemError("list", folder, errno);
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = readdir(stream)) {
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
    }
    const int error = errno;
    closedir(stream);
    if (error != 0) return SystemError("list", folder, error);
    std::ranges::sort(names);
    return names;
  }

  Status SyncDirectory(const std::string& folder) override {
    const Descriptor descriptor(OpenPath(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (descriptor.number() < 0) return SystemError("open", folder, errno);
    if (Retry([&] { return fsync(descriptor.number()); }) != 0) {
      return SystemError("sync", folder, errno);
    }
    return OkStatus();
  }

  Result<FileInfo> Stat(const std::string& path) override {
    struct stat info {};
    if (stat(path.c_str(), &info) != 0) return SystemError("stat", path, errno);
    return FileInfo{info.st_size,
                    int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec,
                    info.st_ino, info.st_mode & 0777};
  }

  Result<std::unique_ptr<FileLock>> Lock(const std::string& path) override {
    Descriptor descriptor(OpenPath(path, O_RDWR | O_CREAT | O_CLOEXEC));
    if (descriptor.number() < 0) return SystemError("open", path, errno);
    if (flock(descriptor.number(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) return ResourceExhausted(path + " is held by another process");
      return SystemError("lock", path, errno);
    }
    return std::unique_ptr<FileLock>(std::make_unique<PosixLock>(std::move(descriptor)));
  }

 private:
  static int OpenPath(const std::string& path, int flags, mode_t permissions = 0644) {
    return Retry([&] { return open(path.c_str(), flags, permissions); });
  }
};

}  // namespace

std::unique_ptr<FileSystem> MakePosixFileSystem() { return std::make_unique<PosixFileSystem>(); }

}  // namespace deepinfer
