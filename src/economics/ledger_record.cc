#include "economics/ledger_record.h"

#include <fmt/format.h>

#include "base/json_writer.h"
#include "base/utf8.h"
#include "economics/utc_time.h"

namespace deepinfer {
namespace {

constexpr std::string_view kTierNames[] = {"device", "dram", "disk", "remote"};

void Text(std::string_view key, const std::string& text, JsonWriter* json) {
  json->Field(key, ReplaceInvalidUtf8(text));
}

void TextOrNull(std::string_view key, const std::optional<std::string>& text, JsonWriter* json) {
  if (text) {
    Text(key, *text, json);
  } else {
    json->Key(key).Null();
  }
}

void IntOrNull(std::string_view key, const std::optional<int64_t>& number, JsonWriter* json) {
  if (number) {
    json->Field(key, *number);
  } else {
    json->Key(key).Null();
  }
}

void Nulls(std::initializer_list<std::string_view> keys, JsonWriter* json) {
  for (const std::string_view key : keys) json->Key(key).Null();
}

// Microseconds as milliseconds with three digits.
std::string Millis(int64_t us) { return fmt::format("{}.{:03}", us / 1000, us % 1000); }

int64_t MicrosOfNanos(int64_t ns) { return (ns + 500) / 1000; }

void WriteIds(const LedgerIds& ids, JsonWriter* json) {
  json->Key("ids").BeginObject();
  Text("attempt_id", ids.attempt_id, json);
  Text("request_id", ids.request_id, json);
  Text("work_id", ids.work_id, json);
  TextOrNull("trace_id", ids.trace_id, json);
  TextOrNull("session_label", ids.session_label, json);
  Text("key_name", ids.key_name, json);
  Text("user_ns", ids.user_ns, json);
  Text("route", ids.route, json);
  json->Field("client_retry", ids.client_retry).EndObject();
}

void WriteScope(const LedgerScope& scope, JsonWriter* json) {
  json->Key("scope").BeginObject();
  Text("build_commit", scope.build_commit, json);
  Text("config_hash", scope.config_hash, json);
  Text("model_name", scope.model_name, json);
  TextOrNull("model_revision", scope.model_revision, json);
  TextOrNull("weights_sha256", scope.weights_sha256, json);
  Text("host_id", scope.host_id, json);
  json->Key("role_path").BeginArray();
  for (const std::string& role : scope.role_path) json->String(role);
  json->EndArray();
  TextOrNull("run_id", scope.run_id, json);
  json->EndObject();
}

void WriteTimes(const LedgerTimes& time, JsonWriter* json) {
  json->Key("time_ns").BeginObject().Field("recv", time.recv);
  IntOrNull("admitted", time.admitted, json);
  Nulls({"vision_start", "vision_end"}, json);
  IntOrNull("kv_load_start", time.kv_load_start, json);
  IntOrNull("kv_load_end", time.kv_load_end, json);
  IntOrNull("prefill_start", time.prefill_start, json);
  IntOrNull("prefill_end", time.prefill_end, json);
  IntOrNull("transfer_start", time.transfer_start, json);
  IntOrNull("transfer_end", time.transfer_end, json);
  IntOrNull("first_token", time.first_token, json);
  IntOrNull("last_token", time.last_token, json);
  json->Field("closed", time.closed);
  json->Key("wall_utc").BeginObject().Field("recv", FormatUtc(time.recv_utc_us));
  json->Field("closed", FormatUtc(time.closed_utc_us)).EndObject().EndObject();
}

void WriteTokens(const LedgerTokens& tokens, JsonWriter* json) {
  json->Key("tokens").BeginObject();
  json->Field("prompt", tokens.prompt).Field("cached", tokens.cached);
  json->Key("cached_by_tier").BeginObject();
  for (size_t tier = 0; tier < tokens.cached_by_tier.size(); ++tier) {
    json->Field(kTierNames[tier], tokens.cached_by_tier[tier]);
  }
  json->EndObject();
  json->Field("computed", tokens.computed).Field("replayed", tokens.replayed);
  json->Field("image", tokens.image).Field("cache_written", tokens.cache_written);
  json->Field("cache_written_output", tokens.cache_written_output);
  json->Field("generated", tokens.generated).Field("reasoning", tokens.reasoning);
  json->Field("content", tokens.content).Field("tool", tokens.tool);
  json->Field("control", tokens.control).Field("drafted", tokens.drafted);
  json->Field("draft_accepted", tokens.draft_accepted).Field("wasted", tokens.wasted);
  json->EndObject();
}

void WriteStream(const LedgerRecord& record, JsonWriter* json) {
  const LedgerStream& stream = record.stream;
  const LedgerTimes& time = record.time;
  const int64_t e2e_us = MicrosOfNanos(time.closed - time.recv);
  json->Key("stream").BeginObject().Field("n_chunks", stream.num_chunks);
  if (time.first_token) {
    json->Field("ttft_ms", Millis(MicrosOfNanos(*time.first_token - time.recv)));
  } else {
    json->Key("ttft_ms").Null();
  }
  json->Key("itl_ms").BeginObject();
  constexpr std::string_view kPercentiles[] = {"p50", "p90", "p99", "max"};
  for (size_t i = 0; i < std::size(kPercentiles); ++i) {
    if (stream.itl_us) {
      json->Field(kPercentiles[i], Millis((*stream.itl_us)[i]));
    } else {
      json->Key(kPercentiles[i]).Null();
    }
  }
  json->EndObject().Field("stalls_over_1s", stream.stalls_over_1s);
  json->Field("e2e_ms", Millis(e2e_us));
  const int64_t generated = record.tokens.generated;
  if (generated > 0) {
    json->Field("e2e_ms_per_output_token", Millis((e2e_us + generated / 2) / generated));
  } else {
    json->Key("e2e_ms_per_output_token").Null();
  }
  json->EndObject();
}

void WriteResource(const LedgerResource& resource, JsonWriter* json) {
  json->Key("resource").BeginObject().Key("device_ns").BeginObject();
  Nulls({"vision"}, json);
  IntOrNull("prefill", resource.prefill_device_ns, json);
  IntOrNull("decode", resource.decode_device_ns, json);
  json->EndObject();
  IntOrNull("cpu_ns", resource.cpu_ns, json);
  IntOrNull("kv_block_ns", resource.kv_block_ns, json);
  IntOrNull("disk_read_bytes", resource.disk_read_bytes, json);
  IntOrNull("disk_write_bytes", resource.disk_write_bytes, json);
  json->Key("net_bytes").BeginObject();
  IntOrNull("client", resource.client_bytes, json);
  IntOrNull("handoff", resource.handoff_bytes, json);
  IntOrNull("store", resource.store_bytes, json);
  IntOrNull("control", resource.control_bytes, json);
  json->EndObject().Key("energy_mj").Null();
  json->Field("attribution", "step-share-v1").EndObject();
}

void WriteMoney(const LedgerRecord& record, JsonWriter* json) {
  json->Key("money").BeginObject();
  TextOrNull("price_book", record.price_book, json);
  if (record.price_book) {
    json->Field("price_window", PriceWindowName(record.price_window));
    json->Key("revenue").BeginObject().Field("hit", record.revenue.hit);
    json->Field("miss", record.revenue.miss).Field("output", record.revenue.output);
    json->Field("cache_write", record.revenue.cache_write).EndObject();
  } else {
    Nulls({"price_window", "revenue"}, json);
  }
  if (record.cost_book) {
    json->Key("cost").BeginObject().Field("compute", record.cost.compute);
    json->Field("storage", record.cost.storage).Field("network", record.cost.network);
    json->Field("operations", record.cost.operations).EndObject();
  } else {
    Nulls({"cost"}, json);
  }
  TextOrNull("cost_book", record.cost_book, json);
  json->EndObject();
}

void WriteOutcome(const LedgerOutcome& outcome, JsonWriter* json) {
  json->Key("outcome").BeginObject().Field("http_status", outcome.http_status);
  TextOrNull("finish_reason", outcome.finish_reason, json);
  json->Field("cancelled_by", outcome.cancelled_by);
  TextOrNull("error_code", outcome.error_code, json);
  // Quality is judged later, by lines of their own: until then no work is qualified.
  json->Field("quality", "unchecked").Key("slo_met").Null().Key("qualified").Bool(false);
  json->Key("why_not").BeginArray();
  if (outcome.http_status >= 400 || outcome.error_code) json->String("status");
  json->String("quality");
  if (outcome.cancelled_by != "none") json->String("cancelled");
  if (outcome.finish_reason == "length") json->String("truncated");
  json->EndArray().EndObject();
}

}  // namespace

bool EarnsRevenue(const LedgerOutcome& outcome, int64_t num_chunks) {
  if (outcome.cancelled_by == "client") return num_chunks > 0;
  return outcome.http_status < 400 && !outcome.error_code;
}

void PriceRecord(const PriceBook& book, LedgerRecord* record) {
  record->price_book = book.id();
  record->price_window =
      book.WindowAt(book.ClockOf(record->time.recv_utc_us, record->time.closed_utc_us));
  record->revenue = {};
  if (!EarnsRevenue(record->outcome, record->stream.num_chunks)) return;
  const LedgerTokens& tokens = record->tokens;
  record->revenue = book.Price(record->price_window, {.prompt = tokens.prompt,
                                                      .cached = tokens.cached,
                                                      .cache_written = tokens.cache_written,
                                                      .generated = tokens.generated});
}

UsedResources UsedBy(const LedgerResource& resource) {
  return {
      .device_ns = resource.prefill_device_ns.value_or(0) + resource.decode_device_ns.value_or(0),
      .cpu_ns = resource.cpu_ns.value_or(0),
      .disk_write_bytes = resource.disk_write_bytes.value_or(0),
      .client_bytes = resource.client_bytes.value_or(0),
      .handoff_bytes = resource.handoff_bytes.value_or(0),
      .store_bytes = resource.store_bytes.value_or(0),
      .control_bytes = resource.control_bytes.value_or(0)};
}

void CostRecord(const CostBook& book, LedgerRecord* record) {
  record->cost_book = book.id();
  record->cost = book.Price(UsedBy(record->resource));
}

std::string FormatLedgerLine(const LedgerRecord& record) {
  std::string line;
  JsonWriter json(&line);
  json.BeginObject().Field("schema", kLedgerSchema);
  WriteIds(record.ids, &json);
  WriteScope(record.scope, &json);
  WriteTimes(record.time, &json);
  WriteTokens(record.tokens, &json);
  WriteStream(record, &json);
  WriteResource(record.resource, &json);
  WriteMoney(record, &json);
  WriteOutcome(record.outcome, &json);
  json.EndObject();
  return line;
}

}  // namespace deepinfer
