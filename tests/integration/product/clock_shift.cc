// Preloaded into a process under test: its calendar clock is ahead by the seconds that stand in the
// file CLOCK_SHIFT_FILE, eight bytes that the test may change at any time. Other clocks go on.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

namespace {

const volatile int64_t* shift_s = nullptr;

__attribute__((constructor)) void MapShift() {
  const char* path = std::getenv("CLOCK_SHIFT_FILE");
  const int fd = path == nullptr ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  void* map = mmap(nullptr, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
  if (map != MAP_FAILED) shift_s = static_cast<const volatile int64_t*>(map);
  close(fd);
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t id, timespec* now) noexcept {
  const auto result = static_cast<int>(syscall(SYS_clock_gettime, id, now));
  const bool is_calendar = id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE;
  if (result == 0 && is_calendar && shift_s != nullptr) now->tv_sec += *shift_s;
  return result;
}

int gettimeofday(timeval* __restrict now, void* __restrict) noexcept {
  timespec t{};
  if (clock_gettime(CLOCK_REALTIME, &t) != 0) return -1;
  now->tv_sec = t.tv_sec;
  now->tv_usec = t.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* out) noexcept {
  timespec t{};
  if (clock_gettime(CLOCK_REALTIME, &t) != 0) return -1;
  if (out != nullptr) *out = t.tv_sec;
  return t.tv_sec;
}

}  // extern "C"
