#include "tensor/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>

namespace deepinfer {
namespace {

Status SystemError(const std::string& path, const char* action, int error) {
  const std::string message = fmt::format("{}: cannot {}: {}", path, action, std::strerror(error));
  if (error == ENOENT || error == ENOTDIR) return NotFound(message);
  const bool is_forbidden = error == EACCES || error == EPERM;
  return Unavailable(is_forbidden ? message + "; check the permissions" : message);
}

uint64_t PageBytes() { return static_cast<uint64_t>(sysconf(_SC_PAGESIZE)); }

constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

// Reads one byte of each page: the way to fault pages in on kernels before 5.14.
void TouchPages(const std::byte* data, uint64_t size, uint64_t page_bytes) {
  for (uint64_t offset = 0; offset < size; offset += page_bytes) {
    static_cast<void>(*const_cast<const volatile std::byte*>(data + offset));
  }
}

Status PopulateRange(const std::string& path, const std::byte* data, uint64_t size,
                     uint64_t page_bytes) {
  // madvise takes void* but reading is all that MADV_POPULATE_READ does.
  void* start = const_cast<std::byte*>(data);
  int error = 0;
  do {
    error = madvise(start, size, MADV_POPULATE_READ) == 0 ? 0 : errno;
  } while (error == EINTR);
  switch (error) {
    case 0:
      return OkStatus();
    case EINVAL:
      TouchPages(data, size, page_bytes);
      return OkStatus();
    case EFAULT:
      return DataCorruption(path + ": the file became shorter after it was opened");
    default:
      return SystemError(path, "read the file into memory", error);
  }
}

}  // namespace

Result<MappedFile> MappedFile::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return SystemError(path, "open", errno);
  struct stat info {};
  if (fstat(fd, &info) != 0) {
    const int error = errno;
    close(fd);
    return SystemError(path, "read the file size", error);
  }
  if (!S_ISREG(info.st_mode)) {
    close(fd);
    return DataCorruption(path + ": not a regular file");
  }
  const size_t size = static_cast<size_t>(info.st_size);
  if (size == 0) {
    close(fd);
    return MappedFile(path, nullptr, 0);
  }
  void* data = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  const int error = errno;
  close(fd);
  if (data == MAP_FAILED) return SystemError(path, "map", error);
  return MappedFile(path, static_cast<const std::byte*>(data), size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    Unmap();
    path_ = std::move(other.path_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

MappedFile::~MappedFile() { Unmap(); }

void MappedFile::Unmap() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::Advise(MapAdvice advice) const {
  if (data_ == nullptr) return;
  int hint = MADV_NORMAL;
  switch (advice) {
    case MapAdvice::kNormal:
      hint = MADV_NORMAL;
      break;
    case MapAdvice::kSequential:
      hint = MADV_SEQUENTIAL;
      break;
    case MapAdvice::kRandom:
      hint = MADV_RANDOM;
      break;
    case MapAdvice::kWillNeed:
      hint = MADV_WILLNEED;
      break;
    case MapAdvice::kHugePages:
      hint = MADV_HUGEPAGE;
      break;
  }
  // File systems without huge pages refuse that hint; the mapping works the same without it.
  static_cast<void>(madvise(const_cast<std::byte*>(data_), size_, hint));
}

void MappedFile::UseHugePages() const {
  Advise(MapAdvice::kHugePages);
  if (size_ < 2 * kHugePageBytes) return;
  // One page from the middle, far from the header that is in the cache already, shows both what
  // the cache holds and whether the file system has huge pages.
  const uint64_t offset = size_ / 2 / kHugePageBytes * kHugePageBytes;
  const auto probe = [&] {
    return PopulateRange(path_, data_ + offset, std::min(kHugePageBytes, size_ - offset),
                         PageBytes());
  };
  if (!probe().ok() || HugePageBytes() > 0) return;
  DropPages(offset, kHugePageBytes);
  if (!probe().ok() || HugePageBytes() == 0) return;
  DropPages(0, size_);
}

uint64_t MappedFile::HugePageBytes() const {
  const auto begin = reinterpret_cast<uintptr_t>(data_);
  std::ifstream smaps("/proc/self/smaps");
  uint64_t total = 0;
  bool is_inside = false;
  for (std::string line; std::getline(smaps, line);) {
    unsigned long first = 0, last = 0, kib = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &first, &last) == 2) {
      is_inside = first >= begin && first < begin + size_;
    } else if (is_inside && (std::sscanf(line.c_str(), "FilePmdMapped: %lu kB", &kib) == 1 ||
                             std::sscanf(line.c_str(), "ShmemPmdMapped: %lu kB", &kib) == 1)) {
      total += uint64_t{kib} << 10;
    }
  }
  return total;
}

void MappedFile::DropPages(uint64_t offset, uint64_t size) const {
  size = std::min(size, size_ - offset);
  static_cast<void>(madvise(const_cast<std::byte*>(data_ + offset), size, MADV_DONTNEED));
  const int fd = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  static_cast<void>(
      posix_fadvise(fd, static_cast<off_t>(offset), static_cast<off_t>(size), POSIX_FADV_DONTNEED));
  close(fd);
}

Status MappedFile::Prefault(uint64_t chunk_bytes, const PrefaultProgress& progress) const {
  const uint64_t page_bytes = PageBytes();
  const uint64_t chunk_pages = std::max<uint64_t>(1, (chunk_bytes + page_bytes - 1) / page_bytes);
  for (uint64_t done = 0; done < size_;) {
    const uint64_t length = std::min<uint64_t>(chunk_pages * page_bytes, size_ - done);
    DI_RETURN_IF_ERROR(PopulateRange(path_, data_ + done, length, page_bytes));
    done += length;
    if (progress && !progress(done, size_)) return Cancelled(path_ + ": loading was cancelled");
  }
  return OkStatus();
}

}  // namespace deepinfer
