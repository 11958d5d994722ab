#include "server/request_account.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "server/request_id.h"
#include "server/request_times.h"

namespace deepinfer {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;

// How long a retry is recognised by its body, and how many bodies are remembered.
constexpr std::chrono::minutes kRetryTime{15};
constexpr size_t kMostWorks = 65536;

std::optional<std::string> TextOrNothing(const std::string& text) {
  if (text.empty()) return std::nullopt;
  return text;
}

int64_t RetryCount(const std::string& text) {
  int64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  return error == std::errc() && end == text.data() + text.size() && count >= 0 ? count : 0;
}

LedgerTokens TokensOf(const RequestFacts& facts) {
  LedgerTokens tokens;
  tokens.prompt = facts.prompt_tokens;
  tokens.cached = facts.cached_tokens;
  tokens.cached_by_tier = facts.cached_by_tier;
  tokens.computed = facts.computed_tokens;
  tokens.replayed = facts.replayed_tokens;
  tokens.image = facts.image_tokens;
  tokens.cache_written = facts.cache_write_tokens;
  tokens.cache_written_output = facts.cache_written_output_tokens;
  tokens.generated = facts.completion_tokens;
  tokens.reasoning = facts.reasoning_tokens;
  tokens.tool = facts.tool_tokens;
  tokens.control = facts.control_tokens;
  tokens.content = tokens.generated - tokens.reasoning - tokens.tool - tokens.control;
  tokens.drafted = facts.drafted_tokens;
  tokens.draft_accepted = facts.draft_accepted_tokens;
  tokens.wasted = facts.wasted_tokens;
  return tokens;
}

LedgerResource ResourceOf(const RequestFacts& facts) {
  LedgerResource resource;
  resource.client_bytes = static_cast<int64_t>(facts.outcome.response_bytes);
  resource.cpu_ns = facts.cpu_ns;
  // The persistent cache is files: what goes over the network for them is in the bytes of the disk.
  resource.store_bytes = 0;
  if (!facts.generated) return resource;
  resource.prefill_device_ns = facts.prefill_device_ns;
  resource.decode_device_ns = facts.decode_device_ns;
  resource.kv_block_ns = facts.kv_block_ns;
  resource.disk_read_bytes = facts.disk_read_bytes;
  resource.disk_write_bytes = facts.disk_write_bytes;
  resource.handoff_bytes = facts.handoff_bytes;
  resource.control_bytes = facts.control_bytes;
  return resource;
}

LedgerOutcome OutcomeOf(const RequestFacts& facts) {
  LedgerOutcome outcome;
  outcome.http_status = facts.outcome.status;
  const bool client_left = facts.cancelled || (!facts.generated && facts.outcome.status == 499);
  if (client_left) {
    outcome.http_status = 499;
    outcome.cancelled_by = "client";
  } else if (facts.cancelled_by_server) {
    outcome.cancelled_by = "server";
  } else if (facts.outcome.status == 499 && facts.error_code.empty()) {
    // The answer was complete before its client left.
    outcome.http_status = 200;
  }
  outcome.finish_reason = TextOrNothing(facts.finish_reason);
  outcome.error_code = TextOrNothing(facts.error_code);
  return outcome;
}

}  // namespace

std::string LedgerHostName() {
  char name[256] = "";
  if (gethostname(name, sizeof name - 1) != 0) return "unknown";
  return name;
}

std::string_view RevenueClassName(size_t index) {
  constexpr std::string_view kNames[kNumRevenueClasses] = {"hit", "miss", "output", "cache_write"};
  return kNames[index];
}

RequestAccount::RequestAccount(const ServerOptions& options, std::unique_ptr<LedgerWriter> ledger,
                               KeyBudgets* budgets)
    : options_(options),
      host_id_(LedgerHostName()),
      ledger_(std::move(ledger)),
      budgets_(budgets) {}

void RequestAccount::Record(const RequestFacts& facts, const ModelCard* card) {
  if (!facts.is_accounted || (!ledger_ && !options_.price_book && !options_.cost_book)) return;
  LedgerRecord record = MakeRecord(facts, card);
  if (options_.price_book) {
    PriceRecord(*options_.price_book, &record);
    const Revenue& revenue = record.revenue;
    budgets_->Charge(record.ids.key_name, revenue.Total());
    const Pico parts[kNumRevenueClasses] = {revenue.hit, revenue.miss, revenue.output,
                                            revenue.cache_write};
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < kNumRevenueClasses; ++i) earned_[i] += parts[i];
  }
  if (options_.cost_book) {
    CostRecord(*options_.cost_book, &record);
    const Cost& cost = record.cost;
    const Pico parts[kNumCostClasses] = {cost.compute, cost.storage, cost.network, cost.operations};
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < kNumCostClasses; ++i) spent_[i] += parts[i];
  }
  if (ledger_) ledger_->Append(FormatLedgerLine(record));
}

LedgerRecord RequestAccount::MakeRecord(const RequestFacts& facts, const ModelCard* card) {
  LedgerRecord record;
  LedgerIds& ids = record.ids;
  ids.attempt_id = facts.attempt_id.empty() ? MakeRandomHex128() : facts.attempt_id;
  ids.request_id = facts.request_id;
  ids.work_id = WorkIdOf(facts, ids.attempt_id);
  ids.trace_id = TextOrNothing(facts.trace.trace_id);
  ids.session_label = TextOrNothing(facts.session_label);
  ids.key_name = facts.key_name;
  ids.user_ns = facts.user_namespace;
  ids.route = facts.route;
  ids.client_retry = RetryCount(facts.client_retry);
  LedgerScope& scope = record.scope;
  scope.build_commit = options_.build_commit;
  scope.config_hash = options_.config_hash;
  scope.model_name = facts.model.empty() ? options_.served_model_names.front() : facts.model;
  if (card != nullptr) {
    scope.model_revision = TextOrNothing(card->revision);
    scope.weights_sha256 = TextOrNothing(card->weights_hash);
  }
  scope.host_id = host_id_;
  scope.role_path = {"gateway"};
  if (facts.prompt_tokens > 0) scope.role_path.emplace_back("prefill");
  if (facts.completion_tokens > 0) scope.role_path.emplace_back("decode");
  scope.run_id = TextOrNothing(options_.run_id);
  record.time = TimesOf(facts);
  record.tokens = TokensOf(facts);
  record.stream.num_chunks = facts.num_chunks;
  record.stream.itl_us = facts.itl_us;
  record.stream.stalls_over_1s = facts.num_stalls;
  record.resource = ResourceOf(facts);
  record.outcome = OutcomeOf(facts);
  return record;
}

std::string RequestAccount::WorkIdOf(const RequestFacts& facts, const std::string& attempt_id) {
  if (!facts.work_label.empty()) return facts.work_label;
  if (facts.body_hash.empty()) return attempt_id;
  const SteadyTime now = std::chrono::steady_clock::now();
  const std::string body = facts.key_name + '\n' + facts.body_hash;
  const std::lock_guard lock(mutex_);
  while (!work_ages_.empty() &&
         (now - work_ages_.front().first > kRetryTime || work_ages_.size() >= kMostWorks)) {
    const auto& [seen, key] = work_ages_.front();
    const auto found = works_.find(key);
    if (found != works_.end() && found->second.seen == seen) works_.erase(found);
    work_ages_.pop_front();
  }
  const auto known = works_.find(body);
  const bool is_retry = RetryCount(facts.client_retry) > 0 && known != works_.end();
  std::string work_id = is_retry ? known->second.work_id : attempt_id;
  works_[body] = {work_id, now};
  work_ages_.emplace_back(now, body);
  return work_id;
}

std::optional<std::array<PicoSum, kNumRevenueClasses>> RequestAccount::earned() const {
  if (!options_.price_book) return std::nullopt;
  const std::lock_guard lock(mutex_);
  return earned_;
}

std::optional<std::array<PicoSum, kNumCostClasses>> RequestAccount::spent() const {
  if (!options_.cost_book) return std::nullopt;
  const std::lock_guard lock(mutex_);
  return spent_;
}

bool RequestAccount::Flush(std::chrono::steady_clock::time_point deadline) {
  return !ledger_ || ledger_->Flush(deadline);
}

}  // namespace deepinfer
