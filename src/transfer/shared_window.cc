#include "transfer/shared_window.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <random>
#include <utility>

namespace deepinfer {

namespace {

// No side can cut the file under the other's mapping.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

Result<std::span<std::byte>> Map(int fd, int64_t size_bytes) {
  const auto size = static_cast<size_t>(size_bytes);
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) {
    return Unavailable(std::string("cannot map a shared window: ") + std::strerror(errno));
  }
  return std::span(static_cast<std::byte*>(memory), size);
}

// What the system calls the memory behind a descriptor; tells windows apart whose process and
// descriptor numbers were used before.
std::string NameOf(int fd) {
  char name[128];
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t size = readlink(link.c_str(), name, sizeof name);
  return size < 0 ? std::string() : std::string(name, static_cast<size_t>(size));
}

}  // namespace

SharedWindow::SharedWindow(SharedWindow&& other) noexcept
    : address_(std::move(other.address_)),
      bytes_(std::exchange(other.bytes_, {})),
      fd_(std::move(other.fd_)) {}

SharedWindow& SharedWindow::operator=(SharedWindow&& other) noexcept {
  std::swap(address_, other.address_);
  std::swap(bytes_, other.bytes_);
  std::swap(fd_, other.fd_);
  return *this;
}

SharedWindow::~SharedWindow() {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
}

Result<SharedWindow> SharedWindow::Create(int64_t size_bytes) {
  std::random_device random;
  const std::string cookie = std::to_string((uint64_t{random()} << 32) | random());
  UniqueFd fd(memfd_create(("deepinfer-" + cookie).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd.get() < 0 || ftruncate(fd.get(), size_bytes) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return Unavailable(std::string("cannot make a shared window: ") + std::strerror(errno));
  }
  DI_ASSIGN_OR_RETURN(const std::span<std::byte> bytes, Map(fd.get(), size_bytes));
  std::string address =
      std::to_string(getpid()) + ":" + std::to_string(fd.get()) + ":deepinfer-" + cookie;
  return SharedWindow(std::move(address), bytes, std::move(fd));
}

Result<SharedWindow> SharedWindow::Open(const std::string& address, int64_t size_bytes) {
  int pid = 0, number = -1;
  const char* const end = address.data() + address.size();
  auto read = std::from_chars(address.data(), end, pid);
  if (read.ec == std::errc() && read.ptr != end) read = std::from_chars(read.ptr + 1, end, number);
  if (read.ec != std::errc() || read.ptr == end || size_bytes <= 0) {
    return DataCorruption("not the address of a shared window");
  }
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(number);
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (fd.get() < 0) {
    return Unavailable("cannot reach a shared window of process " + std::to_string(pid) + ": " +
                       std::strerror(errno));
  }
  const std::string want = "/memfd:" + std::string(read.ptr + 1, end) + " (deleted)";
  struct stat stat {};
  if (NameOf(fd.get()) != want || fstat(fd.get(), &stat) != 0 || stat.st_size != size_bytes ||
      (fcntl(fd.get(), F_GET_SEALS) & kSeals) != kSeals) {
    return DataCorruption("the memory behind the address of a shared window is another one");
  }
  DI_ASSIGN_OR_RETURN(const std::span<std::byte> bytes, Map(fd.get(), size_bytes));
  return SharedWindow(address, bytes, UniqueFd());
}

}  // namespace deepinfer
