#include "base/process_stats.h"

#include <charconv>
#include <fstream>
#include <iterator>
#include <string>

namespace deepinfer {

namespace {

// "RssAnon:      1234 kB" -> bytes.
int64_t FieldBytes(std::string_view text, std::string_view field) {
  const size_t at = text.find(field);
  if (at == std::string_view::npos) return 0;
  text.remove_prefix(at + field.size());
  const size_t digits = text.find_first_not_of(" \t");
  if (digits == std::string_view::npos) return 0;
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
  return {FieldBytes(status_text, "RssAnon:"), FieldBytes(status_text, "RssFile:"),
          FieldBytes(status_text, "RssShmem:")};
}

ResidentMemory ReadResidentMemory() { return ParseResidentMemory(ReadAll("/proc/self/status")); }

}  // namespace deepinfer
