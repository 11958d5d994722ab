// Money that keys may spend, as the ledger says they did (api.md §12): exact, and the same after a
// restart.
// Thread rule: any thread. Owner: server/server_state.h.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "economics/money.h"
#include "server/api_keys.h"

namespace deepinfer {

class KeyBudgets {
 public:
  // Of the keys that have one, less what lines in ledger_folder say they spent since its begin.
  // A folder without lines is fine. data_corruption when a line cannot be read: a balance without
  // it would be wrong.
  static Result<std::unique_ptr<KeyBudgets>> Open(const ApiKeys& keys,
                                                  const std::string& ledger_folder);

  bool empty() const { return balances_.empty(); }

  // Ignored for a key without a budget.
  void Charge(const std::string& key_name, PicoSum amount);
  // What is left, which is below zero when running requests went beyond. Nothing for a key without
  // a budget.
  std::optional<PicoSum> Balance(const std::string& key_name) const;

 private:
  Status TakeLines(const ApiKeys& keys, const std::string& ledger_folder);

  mutable std::mutex mutex_;
  std::map<std::string, PicoSum> balances_;  // the keys never change; values under mutex_
};

}  // namespace deepinfer
