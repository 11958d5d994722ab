#include "base/process_stats.h"

#include <time.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace deepinfer {

namespace {

// "RssAnon:      1234 kB" -> bytes.
int64_t FieldBytes(std::string_view text, std::string_view field, int64_t otherwise) {
  const size_t at = text.find(field);
  if (at == std::string_view::npos) return otherwise;
  text.remove_prefix(at + field.size());
  const size_t digits = text.find_first_not_of(" \t");
  if (digits == std::string_view::npos) return otherwise;
  int64_t kibibytes = 0;
  std::from_chars(text.data() + digits, text.data() + text.size(), kibibytes);
  return kibibytes * 1024;
}

std::string ReadAll(const char* path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

}  // namespace

ResidentMemory ParseResidentMemory(std::string_view status_text) {
  return {FieldBytes(status_text, "RssAnon:", 0), FieldBytes(status_text, "RssFile:", 0),
          FieldBytes(status_text, "RssShmem:", 0)};
}

ResidentMemory ReadResidentMemory() { return ParseResidentMemory(ReadAll("/proc/self/status")); }

int64_t ParseAvailableMemory(std::string_view meminfo_text) {
  return FieldBytes(meminfo_text, "MemAvailable:", -1);
}

int64_t ReadAvailableMemory() { return ParseAvailableMemory(ReadAll("/proc/meminfo")); }

int64_t ThreadCpuNs() {
  timespec time{};
  if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) != 0) return 0;
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

CpuTimes ReadCpuTimes() {
  CpuTimes times;
  std::error_code ec;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", ec)) {
    std::ifstream file(task.path() / "schedstat");
    int64_t running_ns = 0, waiting_ns = 0;
    if (file >> running_ns >> waiting_ns) {
      times.running_ns += running_ns;
      times.waiting_ns += waiting_ns;
    }
  }
  return times;
}

}  // namespace deepinfer
