// Reads the files of a ledger in order of their names, line by line.
// Thread rule: pure functions of the file system.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "economics/ledger_line.h"

namespace deepinfer {

// path itself, or the ledger files of the folder path, by name: by hour, then process. not_found.
Result<std::vector<std::string>> LedgerFiles(const std::string& path);

// Those of a folder that may hold lines of requests received at utc_us or later. not_found.
Result<std::vector<std::string>> LedgerFilesSince(const std::string& folder, int64_t utc_us);

struct LedgerReadStats {
  int64_t num_lines = 0;
  int64_t num_torn = 0;  // lines without an end: their process was killed
};

// Called for every line with its place, "FILE:NUMBER". An error stops the reading.
using LedgerLineSink =
    std::function<Status(const std::string& place, const std::string& text, ParsedLine line)>;

// A last line without a newline is skipped and counted; any other line that cannot be read is an
// error that begins with its place.
Status ReadLedger(const std::vector<std::string>& files, const LedgerLineSink& sink,
                  LedgerReadStats* stats);

// Hands out the lines that were appended since the last call, files that appear included.
// Thread rule: one object, one thread.
class LedgerFollower {
 public:
  explicit LedgerFollower(std::string path) : path_(std::move(path)) {}

  Status Poll(const LedgerLineSink& sink);

 private:
  std::string path_;
  std::map<std::string, int64_t> offsets_;  // bytes of whole lines handed out, by file
};

}  // namespace deepinfer
