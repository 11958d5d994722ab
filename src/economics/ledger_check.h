// The invariants that a ledger must keep (economics.md §7).
// Thread rule: one object, one thread.
#pragma once

#include <map>
#include <set>
#include <string>

#include "economics/ledger_line.h"

namespace deepinfer {

class LedgerCheck {
 public:
  // Takes the lines of a ledger in order. data_corruption says which invariant a line breaks.
  Status Take(const std::string& place, const ParsedLine& line);

 private:
  Status CheckRevenue(const LedgerLine& line);

  std::map<std::string, std::string> attempts_;   // place of each attempt
  std::map<std::string, std::string> qualified_;  // place of the qualified line of a work id
  std::map<std::string, PriceBook> books_;        // shipped ones that were met
  std::set<std::string> unknown_books_;
};

}  // namespace deepinfer
