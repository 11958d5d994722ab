#include "economics/ledger_check.h"

#include <numeric>
#include <utility>
#include <vector>

namespace deepinfer {
namespace {

Status Broken(const std::string& what) { return DataCorruption(what); }

Status CheckTokens(const LedgerTokens& t) {
  const std::pair<const char*, int64_t> counts[] = {
      {"prompt", t.prompt},
      {"cached", t.cached},
      {"computed", t.computed},
      {"replayed", t.replayed},
      {"image", t.image},
      {"cache_written", t.cache_written},
      {"cache_written_output", t.cache_written_output},
      {"generated", t.generated},
      {"reasoning", t.reasoning},
      {"content", t.content},
      {"tool", t.tool},
      {"control", t.control},
      {"drafted", t.drafted},
      {"draft_accepted", t.draft_accepted},
      {"wasted", t.wasted}};
  for (const auto& [name, count] : counts) {
    if (count < 0) return Broken(std::string("tokens.") + name + " is negative");
  }
  const auto& tiers = t.cached_by_tier;
  if (t.prompt != t.cached + t.computed) return Broken("prompt is not cached + computed");
  if (t.cached != std::accumulate(tiers.begin(), tiers.end(), int64_t{0})) {
    return Broken("cached is not the sum of cached_by_tier");
  }
  if (t.replayed > t.computed) return Broken("replayed exceeds computed");
  if (t.cache_written > t.computed) return Broken("cache_written exceeds computed");
  if (t.cache_written_output > t.generated + t.wasted) {
    return Broken("cache_written_output exceeds generated");
  }
  if (t.generated != t.reasoning + t.content + t.tool + t.control) {
    return Broken("generated is not reasoning + content + tool + control");
  }
  if (t.draft_accepted > t.drafted) return Broken("draft_accepted exceeds drafted");
  if (t.draft_accepted > t.generated + t.wasted) {
    return Broken("draft_accepted exceeds generated");
  }
  return OkStatus();
}

Status CheckTimes(const LedgerTimes& time) {
  const std::pair<const char*, std::optional<int64_t>> instants[] = {
      {"recv", time.recv},
      {"admitted", time.admitted},
      {"kv_load_start", time.kv_load_start},
      {"kv_load_end", time.kv_load_end},
      {"prefill_start", time.prefill_start},
      {"prefill_end", time.prefill_end},
      {"first_token", time.first_token},
      {"last_token", time.last_token},
      {"closed", time.closed}};
  const char* previous_name = "recv";
  int64_t previous = time.recv;
  for (const auto& [name, instant] : instants) {
    if (!instant) continue;
    if (*instant < previous) {
      return Broken(std::string("time_ns.") + name + " is before " + previous_name);
    }
    previous = *instant;
    previous_name = name;
  }
  // A transfer may begin while the prompt is computed, so it stands in no such order.
  if (time.transfer_start.has_value() != time.transfer_end.has_value() ||
      time.transfer_start.value_or(0) > time.transfer_end.value_or(0)) {
    return Broken("time_ns.transfer_end is before transfer_start");
  }
  return OkStatus();
}

Status CheckResources(const LedgerLine& line) {
  const std::pair<const char*, std::optional<int64_t>> used[] = {
      {"device_ns.prefill", line.resource.prefill_device_ns},
      {"device_ns.decode", line.resource.decode_device_ns},
      {"cpu_ns", line.resource.cpu_ns},
      {"kv_block_ns", line.resource.kv_block_ns},
      {"disk_read_bytes", line.resource.disk_read_bytes},
      {"disk_write_bytes", line.resource.disk_write_bytes},
      {"net_bytes.client", line.resource.client_bytes},
      {"net_bytes.handoff", line.resource.handoff_bytes},
      {"net_bytes.store", line.resource.store_bytes},
      {"net_bytes.control", line.resource.control_bytes}};
  for (const auto& [name, amount] : used) {
    if (amount.value_or(0) < 0) return Broken(std::string("resource.") + name + " is negative");
  }
  if (line.cost_book.has_value() != line.cost.has_value()) {
    return Broken("money.cost and money.cost_book do not go together");
  }
  return OkStatus();
}

// A line says why it does not qualify, or meets all that qualified work must.
Status CheckOutcome(const LedgerLine& line) {
  if (line.qualified != line.why_not.empty()) {
    return Broken("outcome.qualified and outcome.why_not do not go together");
  }
  const LedgerOutcome& outcome = line.outcome;
  const bool completed =
      outcome.http_status < 400 && !outcome.error_code && outcome.cancelled_by == "none";
  if (line.qualified && (!completed || line.quality != "pass" || line.slo_met == false)) {
    return Broken("outcome.qualified is true, but the work is not complete, passed and in time");
  }
  return OkStatus();
}

}  // namespace

Status LedgerCheck::CheckRevenue(const LedgerLine& line) {
  if (line.price_book.has_value() != line.revenue.has_value()) {
    return Broken("money.revenue and money.price_book do not go together");
  }
  if (!line.price_book || unknown_books_.contains(*line.price_book)) return OkStatus();
  auto found = books_.find(*line.price_book);
  if (found == books_.end()) {
    Result<PriceBook> book = PriceBook::Shipped(*line.price_book);
    if (!book.ok()) {
      // A book of the operator's own is not known by its id.
      unknown_books_.insert(*line.price_book);
      return OkStatus();
    }
    found = books_.emplace(*line.price_book, *std::move(book)).first;
  }
  LedgerRecord record;
  record.time = line.time;
  record.tokens = line.tokens;
  record.stream.num_chunks = line.num_chunks;
  record.outcome = line.outcome;
  PriceRecord(found->second, &record);
  if (line.price_window != PriceWindowName(record.price_window)) {
    return Broken("money.price_window is not that of the instant");
  }
  if (*line.revenue != record.revenue) {
    return Broken("money.revenue is not the tokens at the prices of the book");
  }
  return OkStatus();
}

Status LedgerCheck::TakeOverhead(const OverheadRecord& record) {
  if (record.device_ns < 0) return Broken("device_ns is negative");
  if (record.requests_ns < 0) return Broken("requests_ns is negative");
  DeviceLines& device = devices_[{record.scope.process, record.device}];
  claimed_ns_ += record.requests_ns;
  if (record.kind == OverheadKind::kProbe) {
    device.probes_ns += record.device_ns;
    return OkStatus();
  }
  const int64_t probes_ns = std::exchange(device.probes_ns, 0);
  if (record.wall_ns() + probes_ns != record.to_ns - record.from_ns) {
    return Broken("device_ns, requests_ns and those of probes are not the time from from to to");
  }
  if (device.until_ns != 0 && record.from_ns != device.until_ns) {
    return Broken("time_ns.from is not the end of the line before");
  }
  device.until_ns = record.to_ns;
  device.has_begin = device.has_begin || record.kind == OverheadKind::kStartup;
  device.has_end = record.is_last;
  return OkStatus();
}

Status LedgerCheck::Finish() const {
  for (const auto& [name, device] : devices_) {
    if (!device.has_begin || !device.has_end) return OkStatus();
  }
  if (devices_.empty() || charged_ns_ == claimed_ns_) return OkStatus();
  return Broken("the lines of requests have " + std::to_string(charged_ns_) +
                " ns of devices, those of overhead say " + std::to_string(claimed_ns_));
}

Status LedgerCheck::Take(const std::string& place, const ParsedLine& parsed) {
  if (parsed.kind == LineKind::kOverhead) return TakeOverhead(parsed.overhead);
  if (parsed.kind == LineKind::kGrade) return OkStatus();
  const LedgerLine& line = parsed.ledger;
  charged_ns_ +=
      line.resource.prefill_device_ns.value_or(0) + line.resource.decode_device_ns.value_or(0);
  DI_RETURN_IF_ERROR(CheckTokens(line.tokens));
  DI_RETURN_IF_ERROR(CheckTimes(line.time));
  DI_RETURN_IF_ERROR(CheckResources(line));
  DI_RETURN_IF_ERROR(CheckOutcome(line));
  DI_RETURN_IF_ERROR(CheckRevenue(line));
  const auto [attempt, is_new] = attempts_.emplace(line.attempt_id, place);
  if (!is_new) return Broken("ids.attempt_id is also on line " + attempt->second);
  if (!line.qualified) return OkStatus();
  const auto [work, is_first] = qualified_.emplace(line.work_id, place);
  if (!is_first) return Broken("ids.work_id is already qualified on line " + work->second);
  return OkStatus();
}

}  // namespace deepinfer
