// From the facts of a finished request to its ledger line, and the money that was earned so far
// (economics.md §3).
// Thread rule: any thread. Owner: server/server_state.h.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "economics/ledger_record.h"
#include "economics/ledger_writer.h"
#include "server/key_budgets.h"
#include "server/model_context.h"
#include "server/request_record.h"
#include "server/server_options.h"

namespace deepinfer {

inline constexpr size_t kNumRevenueClasses = 4;
inline constexpr size_t kNumCostClasses = 4;  // compute, storage, network, operations

// Of this machine, as lines say it.
std::string LedgerHostName();

// "hit", "miss", "output", "cache_write"
std::string_view RevenueClassName(size_t index);

class RequestAccount {
 public:
  // ledger: null for none. budgets are charged with what requests earn. `options` and `budgets`
  // outlive this object.
  RequestAccount(const ServerOptions& options, std::unique_ptr<LedgerWriter> ledger,
                 KeyBudgets* budgets);

  // The last word about a request: prices it and writes its line. card: null until a model is
  // attached.
  void Record(const RequestFacts& facts, const ModelCard* card);

  // True when a body hash would be used (RequestFacts::body_hash).
  bool wants_body_hash() const { return ledger_ != nullptr; }

  // Pico-units by class since the start; nothing without a price book.
  std::optional<std::array<PicoSum, kNumRevenueClasses>> earned() const;
  // The same of costs, without a cost book nothing.
  std::optional<std::array<PicoSum, kNumCostClasses>> spent() const;
  int64_t num_dropped_lines() const { return ledger_ ? ledger_->num_dropped() : 0; }
  const std::string& host_id() const { return host_id_; }
  LedgerWriter* ledger() { return ledger_.get(); }  // may be null
  // Waits until every line so far is in its file; false when the deadline came first.
  bool Flush(std::chrono::steady_clock::time_point deadline);

 private:
  struct Work {
    std::string work_id;
    std::chrono::steady_clock::time_point seen;
  };

  LedgerRecord MakeRecord(const RequestFacts& facts, const ModelCard* card);
  // The logical request that this attempt belongs to.
  std::string WorkIdOf(const RequestFacts& facts, const std::string& attempt_id);

  const ServerOptions& options_;
  const std::string host_id_;
  const std::unique_ptr<LedgerWriter> ledger_;
  KeyBudgets* const budgets_;

  mutable std::mutex mutex_;
  std::array<PicoSum, kNumRevenueClasses> earned_{};  // under mutex_
  std::array<PicoSum, kNumCostClasses> spent_{};      // under mutex_
  std::map<std::string, Work> works_;                 // under mutex_, by key name and body hash
  std::deque<std::pair<std::chrono::steady_clock::time_point, std::string>> work_ages_;
};

}  // namespace deepinfer
