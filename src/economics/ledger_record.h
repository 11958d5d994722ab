// One attempt of one request as a ledger line, schema deepinfer.ledger.v1 (economics.md §3). Holds
// no text of prompts or answers and no key.
// Thread rule: values and pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "economics/cost_book.h"
#include "economics/price_book.h"

namespace deepinfer {

inline constexpr std::string_view kLedgerSchema = "deepinfer.ledger.v1";
inline constexpr std::string_view kGradeSchema = "deepinfer.grade.v1";

struct LedgerIds {
  std::string attempt_id;  // 32 hex digits, unique per line
  std::string request_id;
  std::string work_id;
  std::optional<std::string> trace_id;
  std::optional<std::string> session_label;
  std::string key_name;
  std::string user_ns;  // keyed hash
  std::string route;
  int64_t client_retry = 0;
};

struct LedgerScope {
  std::string build_commit;
  std::string config_hash;
  std::string model_name;
  std::optional<std::string> model_revision;
  std::optional<std::string> weights_sha256;
  std::string host_id;
  std::vector<std::string> role_path;
  std::optional<std::string> run_id;
};

// Nanoseconds of the monotonic clock of the host.
struct LedgerTimes {
  int64_t recv = 0;
  std::optional<int64_t> admitted;
  std::optional<int64_t> kv_load_start;
  std::optional<int64_t> kv_load_end;
  std::optional<int64_t> prefill_start;
  std::optional<int64_t> prefill_end;
  std::optional<int64_t> transfer_start;  // may begin while the prompt is computed
  std::optional<int64_t> transfer_end;
  std::optional<int64_t> first_token;
  std::optional<int64_t> last_token;
  int64_t closed = 0;
  int64_t recv_utc_us = 0;
  int64_t closed_utc_us = 0;
};

struct LedgerTokens {
  int64_t prompt = 0;
  int64_t cached = 0;
  std::array<int64_t, 4> cached_by_tier{};  // device, dram, disk, remote
  int64_t computed = 0;
  int64_t replayed = 0;
  int64_t image = 0;
  int64_t cache_written = 0;
  int64_t cache_written_output = 0;
  int64_t generated = 0;
  int64_t reasoning = 0;
  int64_t content = 0;
  int64_t tool = 0;
  int64_t control = 0;
  int64_t drafted = 0;
  int64_t draft_accepted = 0;
  int64_t wasted = 0;
};

struct LedgerStream {
  int64_t num_chunks = 0;
  // Microseconds between tokens: 50th, 90th, 99th percentile and the largest; none below two
  // tokens.
  std::optional<std::array<int64_t, 4>> itl_us;
  int64_t stalls_over_1s = 0;
};

// Nothing where it is not known: of requests that no engine saw.
struct LedgerResource {
  std::optional<int64_t> prefill_device_ns;
  std::optional<int64_t> decode_device_ns;
  std::optional<int64_t> cpu_ns;  // of the threads that receive, render and answer
  std::optional<int64_t> kv_block_ns;
  std::optional<int64_t> disk_read_bytes;
  std::optional<int64_t> disk_write_bytes;
  std::optional<int64_t> client_bytes;   // sent to the client
  std::optional<int64_t> handoff_bytes;  // of states that moved between workers
  std::optional<int64_t> store_bytes;    // of the persistent cache over the network
  std::optional<int64_t> control_bytes;  // of messages between gateway and workers
};

// What it cost by a book, as far as it was measured.
UsedResources UsedBy(const LedgerResource& resource);

struct LedgerOutcome {
  int64_t http_status = 0;  // 499: the client left
  std::optional<std::string> finish_reason;
  std::string cancelled_by = "none";  // client, server, none
  std::optional<std::string> error_code;
};

struct LedgerRecord {
  LedgerIds ids;
  LedgerScope scope;
  LedgerTimes time;
  LedgerTokens tokens;
  LedgerStream stream;
  LedgerResource resource;
  // Null without a price book.
  std::optional<std::string> price_book;
  PriceWindow price_window = PriceWindow::kFlat;
  Revenue revenue;
  // Null without a cost book.
  std::optional<std::string> cost_book;
  Cost cost;
  LedgerOutcome outcome;
};

// Failed requests and those whose client left before anything was sent earn nothing.
bool EarnsRevenue(const LedgerOutcome& outcome, int64_t num_chunks);

// Fills price_book, price_window and revenue from the rest of the record.
void PriceRecord(const PriceBook& book, LedgerRecord* record);

// Fills cost_book and cost from what was measured. Failed and cancelled requests cost what they
// used.
void CostRecord(const CostBook& book, LedgerRecord* record);

// The line without its newline. Values that nothing measures yet are null.
std::string FormatLedgerLine(const LedgerRecord& record);

}  // namespace deepinfer
