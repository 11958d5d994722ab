// The invariants that a ledger must keep (economics.md §7).
// Thread rule: one object, one thread.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>

#include "economics/ledger_line.h"

namespace deepinfer {

class LedgerCheck {
 public:
  // Takes the lines of a ledger in order. data_corruption says which invariant a line breaks.
  Status Take(const std::string& place, const ParsedLine& line);

  // Behind the last line: the time of the devices is that of requests and overhead together, where
  // every process of the ledger has ended and its lines are all here.
  Status Finish() const;

 private:
  // One device of one process.
  struct DeviceLines {
    int64_t until_ns = 0;   // end of its newest line that is no probe
    int64_t probes_ns = 0;  // since then
    bool has_begin = false;
    bool has_end = false;
  };

  Status TakeOverhead(const OverheadRecord& record);

  Status CheckRevenue(const LedgerLine& line);

  std::map<std::string, std::string> attempts_;                     // place of each attempt
  std::map<std::pair<std::string, int64_t>, DeviceLines> devices_;  // by process and index
  int64_t charged_ns_ = 0;                        // device time of requests, by their own lines
  int64_t claimed_ns_ = 0;                        // the same by those of overhead
  std::map<std::string, std::string> qualified_;  // place of the qualified line of a work id
  std::map<std::string, PriceBook> books_;        // shipped ones that were met
  std::set<std::string> unknown_books_;
};

}  // namespace deepinfer
