#include "economics/ledger_line.h"

#include <algorithm>
#include <boost/json.hpp>
#include <iterator>

#include "base/json_writer.h"
#include "economics/json_path.h"
#include "economics/utc_time.h"

namespace deepinfer {
namespace json = boost::json;

namespace {

enum class FieldType : unsigned char {
  kText,
  kTextOrNull,
  kInt,
  kIntOrNull,
  kBool,
  kBoolOrNull,
  kTexts,         // array of strings
  kObjectOrNull,  // its members are looked at where they are used
};

struct Field {
  std::string_view path;
  FieldType type;
  bool is_dimension = false;
};

using enum FieldType;

// Every field of the schema.
constexpr Field kFields[] = {
    {"schema", kText},
    {"ids.attempt_id", kText},
    {"ids.request_id", kText},
    {"ids.work_id", kText},
    {"ids.trace_id", kTextOrNull},
    {"ids.session_label", kTextOrNull, true},
    {"ids.key_name", kText, true},
    {"ids.user_ns", kText, true},
    {"ids.route", kText, true},
    {"ids.client_retry", kInt, true},
    {"scope.build_commit", kText, true},
    {"scope.config_hash", kText, true},
    {"scope.model_name", kText, true},
    {"scope.model_revision", kTextOrNull, true},
    {"scope.weights_sha256", kTextOrNull},
    {"scope.host_id", kText, true},
    {"scope.role_path", kTexts},
    {"scope.run_id", kTextOrNull, true},
    {"time_ns.recv", kInt},
    {"time_ns.admitted", kIntOrNull},
    {"time_ns.vision_start", kIntOrNull},
    {"time_ns.vision_end", kIntOrNull},
    {"time_ns.kv_load_start", kIntOrNull},
    {"time_ns.kv_load_end", kIntOrNull},
    {"time_ns.prefill_start", kIntOrNull},
    {"time_ns.prefill_end", kIntOrNull},
    {"time_ns.transfer_start", kIntOrNull},
    {"time_ns.transfer_end", kIntOrNull},
    {"time_ns.first_token", kIntOrNull},
    {"time_ns.last_token", kIntOrNull},
    {"time_ns.closed", kInt},
    {"time_ns.wall_utc.recv", kText},
    {"time_ns.wall_utc.closed", kText},
    {"tokens.prompt", kInt},
    {"tokens.cached", kInt},
    {"tokens.cached_by_tier.device", kInt},
    {"tokens.cached_by_tier.dram", kInt},
    {"tokens.cached_by_tier.disk", kInt},
    {"tokens.cached_by_tier.remote", kInt},
    {"tokens.computed", kInt},
    {"tokens.replayed", kInt},
    {"tokens.image", kInt},
    {"tokens.cache_written", kInt},
    {"tokens.cache_written_output", kInt},
    {"tokens.generated", kInt},
    {"tokens.reasoning", kInt},
    {"tokens.content", kInt},
    {"tokens.tool", kInt},
    {"tokens.control", kInt},
    {"tokens.drafted", kInt},
    {"tokens.draft_accepted", kInt},
    {"tokens.wasted", kInt},
    {"stream.n_chunks", kInt},
    {"stream.ttft_ms", kTextOrNull},
    {"stream.itl_ms.p50", kTextOrNull},
    {"stream.itl_ms.p90", kTextOrNull},
    {"stream.itl_ms.p99", kTextOrNull},
    {"stream.itl_ms.max", kTextOrNull},
    {"stream.stalls_over_1s", kInt},
    {"stream.e2e_ms", kText},
    {"stream.e2e_ms_per_output_token", kTextOrNull},
    {"resource.device_ns.vision", kIntOrNull},
    {"resource.device_ns.prefill", kIntOrNull},
    {"resource.device_ns.decode", kIntOrNull},
    {"resource.cpu_ns", kIntOrNull},
    {"resource.kv_block_ns", kIntOrNull},
    {"resource.disk_read_bytes", kIntOrNull},
    {"resource.disk_write_bytes", kIntOrNull},
    {"resource.net_bytes.client", kIntOrNull},
    {"resource.net_bytes.handoff", kIntOrNull},
    {"resource.net_bytes.store", kIntOrNull},
    {"resource.net_bytes.control", kIntOrNull},
    {"resource.energy_mj", kIntOrNull},
    {"resource.attribution", kText},
    {"money.price_book", kTextOrNull, true},
    {"money.price_window", kTextOrNull, true},
    {"money.revenue", kObjectOrNull},
    {"money.cost", kObjectOrNull},
    {"money.cost_book", kTextOrNull, true},
    {"outcome.http_status", kInt, true},
    {"outcome.finish_reason", kTextOrNull, true},
    {"outcome.cancelled_by", kText, true},
    {"outcome.error_code", kTextOrNull, true},
    {"outcome.quality", kText, true},
    {"outcome.slo_met", kBoolOrNull, true},
    {"outcome.qualified", kBool, true},
    {"outcome.why_not", kTexts},
};

bool HasType(const json::value& value, FieldType type) {
  switch (type) {
    case kText:
      return value.is_string();
    case kTextOrNull:
      return value.is_string() || value.is_null();
    case kInt:
      return value.is_int64();
    case kIntOrNull:
      return value.is_int64() || value.is_null();
    case kBool:
      return value.is_bool();
    case kBoolOrNull:
      return value.is_bool() || value.is_null();
    case kTexts:
      return value.is_array() &&
             std::all_of(value.get_array().begin(), value.get_array().end(),
                         [](const json::value& item) { return item.is_string(); });
    case kObjectOrNull:
      return value.is_object() || value.is_null();
  }
  return false;
}

// Reads fields whose presence and type were checked.
class Reader {
 public:
  explicit Reader(const json::value& root) : root_(root) {}

  std::string Text(std::string_view path) const {
    return std::string(FindAtPath(root_, path)->get_string());
  }
  std::optional<std::string> TextOrNull(std::string_view path) const {
    const json::value* value = FindAtPath(root_, path);
    if (value->is_null()) return std::nullopt;
    return std::string(value->get_string());
  }
  int64_t Int(std::string_view path) const { return FindAtPath(root_, path)->get_int64(); }
  std::optional<int64_t> IntOrNull(std::string_view path) const {
    const json::value* value = FindAtPath(root_, path);
    if (value->is_null()) return std::nullopt;
    return value->get_int64();
  }
  // As sums show it.
  std::string Shown(std::string_view path) const {
    const json::value* value = FindAtPath(root_, path);
    return value->is_string() ? std::string(value->get_string()) : json::serialize(*value);
  }

 private:
  const json::value& root_;
};

Status Corrupt(std::string_view path, const char* what) {
  return DataCorruption(std::string(path) + " " + what);
}

Status ReadTimes(const Reader& reader, LedgerTimes* time) {
  time->recv = reader.Int("time_ns.recv");
  time->admitted = reader.IntOrNull("time_ns.admitted");
  time->kv_load_start = reader.IntOrNull("time_ns.kv_load_start");
  time->kv_load_end = reader.IntOrNull("time_ns.kv_load_end");
  time->prefill_start = reader.IntOrNull("time_ns.prefill_start");
  time->prefill_end = reader.IntOrNull("time_ns.prefill_end");
  time->transfer_start = reader.IntOrNull("time_ns.transfer_start");
  time->transfer_end = reader.IntOrNull("time_ns.transfer_end");
  time->first_token = reader.IntOrNull("time_ns.first_token");
  time->last_token = reader.IntOrNull("time_ns.last_token");
  time->closed = reader.Int("time_ns.closed");
  const auto recv = ParseUtc(reader.Text("time_ns.wall_utc.recv"));
  const auto closed = ParseUtc(reader.Text("time_ns.wall_utc.closed"));
  if (!recv) return Corrupt("time_ns.wall_utc.recv", "is not a time");
  if (!closed) return Corrupt("time_ns.wall_utc.closed", "is not a time");
  time->recv_utc_us = *recv;
  time->closed_utc_us = *closed;
  return OkStatus();
}

// No request has more; sums of lines stay far from the end of 64 bits.
constexpr int64_t kMostTokens = int64_t{1} << 32;

Result<LedgerTokens> ReadTokens(const Reader& reader) {
  LedgerTokens tokens;
  const std::pair<std::string_view, int64_t*> fields[] = {
      {"tokens.prompt", &tokens.prompt},
      {"tokens.cached", &tokens.cached},
      {"tokens.cached_by_tier.device", &tokens.cached_by_tier[0]},
      {"tokens.cached_by_tier.dram", &tokens.cached_by_tier[1]},
      {"tokens.cached_by_tier.disk", &tokens.cached_by_tier[2]},
      {"tokens.cached_by_tier.remote", &tokens.cached_by_tier[3]},
      {"tokens.computed", &tokens.computed},
      {"tokens.replayed", &tokens.replayed},
      {"tokens.image", &tokens.image},
      {"tokens.cache_written", &tokens.cache_written},
      {"tokens.cache_written_output", &tokens.cache_written_output},
      {"tokens.generated", &tokens.generated},
      {"tokens.reasoning", &tokens.reasoning},
      {"tokens.content", &tokens.content},
      {"tokens.tool", &tokens.tool},
      {"tokens.control", &tokens.control},
      {"tokens.drafted", &tokens.drafted},
      {"tokens.draft_accepted", &tokens.draft_accepted},
      {"tokens.wasted", &tokens.wasted},
  };
  for (const auto& [path, out] : fields) {
    *out = reader.Int(path);
    if (*out < -kMostTokens || *out > kMostTokens) return Corrupt(path, "is out of range");
  }
  return tokens;
}

// Integers of a group that may be null; false then.
Result<bool> ReadAmounts(const json::value& root, const std::string& path,
                         std::initializer_list<std::pair<const char*, Pico*>> fields) {
  const json::value* group = FindAtPath(root, path);
  if (group->is_null()) return false;
  for (const auto& [key, out] : fields) {
    const json::value* value = FindAtPath(*group, key);
    if (value == nullptr || !value->is_int64()) {
      return Corrupt(path + "." + key, "must be an integer");
    }
    *out = value->get_int64();
  }
  return true;
}

Status ReadMoney(const Reader& reader, const json::value& root, LedgerLine* line) {
  line->price_book = reader.TextOrNull("money.price_book");
  line->price_window = reader.TextOrNull("money.price_window");
  line->cost_book = reader.TextOrNull("money.cost_book");
  Revenue revenue;
  DI_ASSIGN_OR_RETURN(const bool has_revenue, ReadAmounts(root, "money.revenue",
                                                          {{"hit", &revenue.hit},
                                                           {"miss", &revenue.miss},
                                                           {"output", &revenue.output},
                                                           {"cache_write", &revenue.cache_write}}));
  if (has_revenue) line->revenue = revenue;
  Cost cost;
  DI_ASSIGN_OR_RETURN(const bool has_cost, ReadAmounts(root, "money.cost",
                                                       {{"compute", &cost.compute},
                                                        {"storage", &cost.storage},
                                                        {"network", &cost.network},
                                                        {"operations", &cost.operations}}));
  if (has_cost) line->cost = cost;
  return OkStatus();
}

LedgerResource ReadResource(const Reader& reader) {
  LedgerResource resource;
  resource.prefill_device_ns = reader.IntOrNull("resource.device_ns.prefill");
  resource.decode_device_ns = reader.IntOrNull("resource.device_ns.decode");
  resource.cpu_ns = reader.IntOrNull("resource.cpu_ns");
  resource.kv_block_ns = reader.IntOrNull("resource.kv_block_ns");
  resource.disk_read_bytes = reader.IntOrNull("resource.disk_read_bytes");
  resource.disk_write_bytes = reader.IntOrNull("resource.disk_write_bytes");
  resource.client_bytes = reader.IntOrNull("resource.net_bytes.client");
  resource.handoff_bytes = reader.IntOrNull("resource.net_bytes.handoff");
  resource.store_bytes = reader.IntOrNull("resource.net_bytes.store");
  resource.control_bytes = reader.IntOrNull("resource.net_bytes.control");
  return resource;
}

Result<LedgerLine> ReadLedgerLine(const json::value& root) {
  for (const Field& field : kFields) {
    const json::value* value = FindAtPath(root, field.path);
    if (value == nullptr) return Corrupt(field.path, "is missing");
    if (!HasType(*value, field.type)) return Corrupt(field.path, "has the wrong type");
  }
  const Reader reader(root);
  LedgerLine line;
  line.attempt_id = reader.Text("ids.attempt_id");
  line.work_id = reader.Text("ids.work_id");
  for (const std::string_view path : LedgerDimensions()) {
    line.dimensions.push_back(reader.Shown(path));
  }
  DI_RETURN_IF_ERROR(ReadTimes(reader, &line.time));
  DI_ASSIGN_OR_RETURN(line.tokens, ReadTokens(reader));
  line.num_chunks = reader.Int("stream.n_chunks");
  line.ttft_ms = reader.TextOrNull("stream.ttft_ms");
  line.e2e_ms = reader.Text("stream.e2e_ms");
  line.route = reader.Text("ids.route");
  line.outcome.http_status = reader.Int("outcome.http_status");
  line.outcome.finish_reason = reader.TextOrNull("outcome.finish_reason");
  line.outcome.cancelled_by = reader.Text("outcome.cancelled_by");
  line.outcome.error_code = reader.TextOrNull("outcome.error_code");
  line.quality = reader.Text("outcome.quality");
  const json::value* slo_met = FindAtPath(root, "outcome.slo_met");
  if (slo_met->is_bool()) line.slo_met = slo_met->get_bool();
  line.qualified = FindAtPath(root, "outcome.qualified")->get_bool();
  for (const json::value& reason : FindAtPath(root, "outcome.why_not")->get_array()) {
    line.why_not.emplace_back(reason.get_string());
  }
  line.resource = ReadResource(reader);
  DI_RETURN_IF_ERROR(ReadMoney(reader, root, &line));
  return line;
}

Result<GradeLine> ReadGradeLine(const json::value& root) {
  GradeLine grade;
  const std::pair<std::string_view, std::string*> fields[] = {
      {"attempt_id", &grade.attempt_id}, {"checker", &grade.checker}, {"quality", &grade.quality}};
  for (const auto& [key, out] : fields) {
    const json::value* value = FindAtPath(root, key);
    if (value == nullptr || !value->is_string()) return Corrupt(key, "must be a string");
    *out = std::string(value->get_string());
  }
  if (grade.quality != "pass" && grade.quality != "fail") {
    return Corrupt("quality", "must be pass or fail");
  }
  return grade;
}

}  // namespace

const std::vector<std::string_view>& LedgerDimensions() {
  static const std::vector<std::string_view> paths = [] {
    std::vector<std::string_view> found;
    for (const Field& field : kFields) {
      if (field.is_dimension) found.push_back(field.path);
    }
    return found;
  }();
  return paths;
}

Result<size_t> FindLedgerDimension(std::string_view name) {
  const auto& paths = LedgerDimensions();
  std::string known;
  for (size_t i = 0; i < paths.size(); ++i) {
    const std::string_view last = paths[i].substr(paths[i].rfind('.') + 1);
    if (name == paths[i] || name == last) return i;
    known += (known.empty() ? "" : ", ") + std::string(last);
  }
  return InvalidRequest("--by " + std::string(name) + ": not one of " + known);
}

Result<ParsedLine> ParseLedgerLine(std::string_view text) {
  boost::system::error_code error;
  const json::value root = json::parse(text, error);
  if (error || !root.is_object()) return DataCorruption("not a JSON object");
  const json::value* schema = FindAtPath(root, "schema");
  if (schema == nullptr || !schema->is_string()) return Corrupt("schema", "is missing");
  ParsedLine parsed;
  const std::string_view name(schema->get_string().data(), schema->get_string().size());
  if (name == kLedgerSchema) {
    DI_ASSIGN_OR_RETURN(parsed.ledger, ReadLedgerLine(root));
  } else if (name == kGradeSchema) {
    parsed.kind = LineKind::kGrade;
    DI_ASSIGN_OR_RETURN(parsed.grade, ReadGradeLine(root));
  } else if (name == kOverheadSchema) {
    parsed.kind = LineKind::kOverhead;
    DI_ASSIGN_OR_RETURN(parsed.overhead, ParseOverheadLine(text));
  } else {
    return Corrupt("schema", "is not known");
  }
  return parsed;
}

Result<GradeLine> ParseGrade(std::string_view text, const std::string& checker) {
  boost::system::error_code error;
  json::value root = json::parse(text, error);
  if (error || !root.is_object()) return InvalidRequest("not a JSON object");
  root.get_object()["checker"] = checker;
  Result<GradeLine> grade = ReadGradeLine(root);
  return grade.ok() ? std::move(grade) : InvalidRequest(grade.status().message());
}

std::string FormatGradeLine(const GradeLine& grade) {
  std::string line;
  JsonWriter json(&line);
  json.BeginObject().Field("schema", kGradeSchema).Field("attempt_id", grade.attempt_id);
  json.Field("checker", grade.checker).Field("quality", grade.quality).EndObject();
  return line;
}

}  // namespace deepinfer
