// What the subcommands of `deepinfer ledger` do, without their flags.
// Thread rule: main thread.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/status.h"

namespace deepinfer {

struct LedgerTailOptions {
  size_t num_lines = 20;
  bool follow = false;
  bool json = false;
};

struct LedgerSumFlags {
  std::vector<std::string> by;
  std::string since, until;  // times or dates, UTC
  std::string price_book;    // prices every line again
  std::string cost_book;     // costs every line again
  std::string cost_device;
  bool json = false;
};

// path: a ledger file, or a folder of them.
Status PrintLedgerTail(const std::string& path, const LedgerTailOptions& options);
Status PrintLedgerSum(const std::string& path, const LedgerSumFlags& flags);
// *clean: every line kept every invariant; otherwise the first fault was printed.
Status CheckLedger(const std::string& path, bool* clean);
// Appends a grade for each {"attempt_id", "quality"} line of input.
Status GradeLedger(const std::string& folder, const std::string& checker, const std::string& input);

}  // namespace deepinfer
