// Exact totals of ledger lines by groups of fields (economics.md §6).
// Thread rule: one object, one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "economics/ledger_line.h"

namespace deepinfer {

struct LedgerSumOptions {
  std::vector<size_t> by;  // indexes into LedgerDimensions; empty: one group
  // Instants of reception, the second excluded.
  int64_t since_us = std::numeric_limits<int64_t>::min();
  int64_t until_us = std::numeric_limits<int64_t>::max();
  // Prices every line again; not owned, may be null.
  const PriceBook* reprice = nullptr;
  // The same for what they cost.
  const CostBook* recost = nullptr;
};

struct LedgerTotals {
  int64_t lines = 0;
  int64_t works = 0;      // work ids whose last attempt is in this group
  int64_t completed = 0;  // those that ended without error or cancellation
  int64_t qualified = 0;  // completed, graded as passed, no SLO missed
  int64_t unpriced = 0;   // lines without revenue
  int64_t prompt = 0;
  int64_t cached = 0;
  int64_t computed = 0;
  int64_t replayed = 0;
  int64_t generated = 0;
  int64_t reasoning = 0;
  int64_t wasted = 0;
  PicoSum hit = 0;
  PicoSum miss = 0;
  PicoSum output = 0;
  PicoSum cache_write = 0;
  PicoSum revenue = 0;
  int64_t uncosted = 0;  // lines without cost
  int64_t device_ns = 0;
  PicoSum compute = 0;
  PicoSum storage = 0;
  PicoSum network = 0;
  PicoSum operations = 0;
  PicoSum cost = 0;

  void Add(const LedgerTokens& tokens);
  void Add(const Revenue& earned);
  void Add(const Cost& spent);
};

// Device time of no request.
struct OverheadTotals {
  int64_t lines = 0;
  int64_t device_ns = 0;
  int64_t uncosted = 0;  // lines without cost
  PicoSum compute = 0;
  PicoSum operations = 0;
};

struct LedgerGroup {
  std::vector<std::string> values;  // one per field of `by`
  LedgerTotals totals;
};

class LedgerSum {
 public:
  explicit LedgerSum(LedgerSumOptions options) : options_(std::move(options)) {}

  // Lines in any order.
  void Take(const ParsedLine& line);

  // Ordered by the values of the groups: equal lines give equal text, whatever their order.
  std::vector<LedgerGroup> Groups() const;

  // By kind; chosen by the end of its time.
  const std::array<OverheadTotals, kNumOverheadKinds>& overhead() const { return overhead_; }

 private:
  // The attempt that stands for its work id: the last one received.
  struct LastAttempt {
    int64_t recv_utc_us = 0;
    std::string attempt_id;
    std::vector<std::string> group;
    bool completed = false;
    bool slo_missed = false;
    std::string quality;
  };

  std::vector<std::string> GroupOf(const LedgerLine& line) const;
  void TakeOverhead(const OverheadRecord& record);

  LedgerSumOptions options_;
  std::map<std::vector<std::string>, LedgerTotals> groups_;
  std::array<OverheadTotals, kNumOverheadKinds> overhead_{};
  std::map<std::string, LastAttempt> works_;
  std::map<std::string, std::string> grades_;  // attempt id -> quality, the last line wins
};

}  // namespace deepinfer
