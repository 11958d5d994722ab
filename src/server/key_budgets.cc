#include "server/key_budgets.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "economics/ledger_files.h"

namespace deepinfer {

Result<std::unique_ptr<KeyBudgets>> KeyBudgets::Open(const ApiKeys& keys,
                                                     const std::string& ledger_folder) {
  auto budgets = std::make_unique<KeyBudgets>();
  for (const auto& key : keys.all()) {
    if (key->budget) budgets->balances_[key->name] = *key->budget;
  }
  if (!budgets->empty()) DI_RETURN_IF_ERROR(budgets->TakeLines(keys, ledger_folder));
  return budgets;
}

Status KeyBudgets::TakeLines(const ApiKeys& keys, const std::string& ledger_folder) {
  std::map<std::string, int64_t, std::less<>> since_us;
  for (const auto& key : keys.all()) {
    if (key->budget) since_us[key->name] = key->budget_from_us;
  }
  const auto earliest =
      std::min_element(since_us.begin(), since_us.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  Result<std::vector<std::string>> files = LedgerFilesSince(ledger_folder, earliest->second);
  if (!files.ok()) {
    return files.status().code() == StatusCode::kNotFound ? OkStatus() : files.status();
  }
  DI_ASSIGN_OR_RETURN(const size_t key_name, FindLedgerDimension("key_name"));
  LedgerReadStats stats;
  return ReadLedger(
      *files,
      [&](const std::string& /*place*/, const std::string& /*text*/, const ParsedLine& line) {
        if (line.kind != LineKind::kLedger || !line.ledger.revenue) return OkStatus();
        const std::string& name = line.ledger.dimensions[key_name];
        const auto since = since_us.find(name);
        if (since != since_us.end() && line.ledger.time.recv_utc_us >= since->second) {
          Charge(name, line.ledger.revenue->Total());
        }
        return OkStatus();
      },
      &stats);
}

void KeyBudgets::Charge(const std::string& key_name, PicoSum amount) {
  const auto balance = balances_.find(key_name);
  if (balance == balances_.end()) return;
  const std::lock_guard lock(mutex_);
  balance->second -= amount;
}

std::optional<PicoSum> KeyBudgets::Balance(const std::string& key_name) const {
  const auto balance = balances_.find(key_name);
  if (balance == balances_.end()) return std::nullopt;
  const std::lock_guard lock(mutex_);
  return balance->second;
}

}  // namespace deepinfer
