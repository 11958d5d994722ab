#include "economics/ledger_files.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "economics/utc_time.h"

namespace deepinfer {

Result<std::vector<std::string>> LedgerFiles(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    if (!fs::exists(path, error)) return NotFound(path + ": no such file or folder");
    return std::vector<std::string>{path};
  }
  std::vector<std::string> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(path, error)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("ledger-") && name.ends_with(".jsonl")) files.push_back(entry.path());
  }
  if (error) return NotFound(path + ": " + error.message());
  if (files.empty()) return NotFound(path + ": no ledger-*.jsonl in this folder");
  std::sort(files.begin(), files.end());
  return files;
}

Result<std::vector<std::string>> LedgerFilesSince(const std::string& folder, int64_t utc_us) {
  DI_ASSIGN_OR_RETURN(std::vector<std::string> files, LedgerFiles(folder));
  // A line is in the file of the hour in which it was written, behind its reception.
  const std::string first = "ledger-" + UtcHourName(utc_us);
  std::erase_if(files, [&](const std::string& path) {
    return std::filesystem::path(path).filename().string() < first;
  });
  return files;
}

Status ReadLedger(const std::vector<std::string>& files, const LedgerLineSink& sink,
                  LedgerReadStats* stats) {
  for (const std::string& path : files) {
    std::ifstream file(path, std::ios::binary);
    if (!file) return NotFound(path + ": cannot be read");
    std::string text;
    for (int64_t number = 1; std::getline(file, text); ++number) {
      if (file.eof()) {
        ++stats->num_torn;
        break;
      }
      const std::string place = path + ":" + std::to_string(number);
      Result<ParsedLine> line = ParseLedgerLine(text);
      if (!line.ok()) return line.status().Annotate(place);
      ++stats->num_lines;
      DI_RETURN_IF_ERROR(sink(place, text, *std::move(line)));
    }
    // A sum over half of a file would look like a sum.
    if (file.bad()) return Unavailable(path + ": reading failed");
  }
  return OkStatus();
}

Status LedgerFollower::Poll(const LedgerLineSink& sink) {
  DI_ASSIGN_OR_RETURN(const std::vector<std::string> files, LedgerFiles(path_));
  for (const std::string& path : files) {
    std::ifstream file(path, std::ios::binary);
    int64_t& offset = offsets_[path];
    file.seekg(offset);
    std::string text;
    // A line without its end is still being written.
    while (std::getline(file, text) && !file.eof()) {
      const std::string place = path + ":@" + std::to_string(offset);
      Result<ParsedLine> line = ParseLedgerLine(text);
      if (!line.ok()) return line.status().Annotate(place);
      offset += static_cast<int64_t>(text.size()) + 1;
      DI_RETURN_IF_ERROR(sink(place, text, *std::move(line)));
    }
  }
  return OkStatus();
}

}  // namespace deepinfer
