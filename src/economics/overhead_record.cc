#include "economics/overhead_record.h"

#include <boost/json.hpp>
#include <utility>

#include "base/json_writer.h"
#include "base/utf8.h"
#include "economics/json_path.h"
#include "economics/utc_time.h"

namespace deepinfer {
namespace json = boost::json;

namespace {

constexpr std::string_view kKindNames[kNumOverheadKinds] = {"idle", "startup", "probe"};

Status Corrupt(std::string_view path, const char* what) {
  return DataCorruption(std::string(path) + " " + what);
}

Result<std::string> Text(const json::value& root, std::string_view path) {
  const json::value* value = FindAtPath(root, path);
  if (value == nullptr || !value->is_string()) return Corrupt(path, "must be a string");
  return std::string(value->get_string());
}

Result<std::optional<std::string>> TextOrNull(const json::value& root, std::string_view path) {
  const json::value* value = FindAtPath(root, path);
  if (value != nullptr && value->is_null()) return std::optional<std::string>();
  DI_ASSIGN_OR_RETURN(std::string text, Text(root, path));
  return std::optional<std::string>(std::move(text));
}

Result<int64_t> Int(const json::value& root, std::string_view path) {
  const json::value* value = FindAtPath(root, path);
  if (value == nullptr || !value->is_int64()) return Corrupt(path, "must be an integer");
  return value->get_int64();
}

Result<int64_t> Instant(const json::value& root, std::string_view path) {
  DI_ASSIGN_OR_RETURN(const std::string text, Text(root, path));
  const std::optional<int64_t> instant = ParseUtc(text);
  if (!instant) return Corrupt(path, "is not a time");
  return *instant;
}

Status ReadScope(const json::value& root, OverheadScope* scope) {
  const std::pair<const char*, std::string*> fields[] = {
      {"scope.build_commit", &scope->build_commit},
      {"scope.config_hash", &scope->config_hash},
      {"scope.model_name", &scope->model_name},
      {"scope.host_id", &scope->host_id},
      {"scope.role", &scope->role},
      {"scope.process", &scope->process}};
  for (const auto& [path, out] : fields) {
    DI_ASSIGN_OR_RETURN(*out, Text(root, path));
  }
  DI_ASSIGN_OR_RETURN(scope->run_id, TextOrNull(root, "scope.run_id"));
  return OkStatus();
}

Status ReadCost(const json::value& root, OverheadRecord* record) {
  DI_ASSIGN_OR_RETURN(record->cost_book, TextOrNull(root, "money.cost_book"));
  if (!record->cost_book) return OkStatus();
  DI_ASSIGN_OR_RETURN(record->cost.compute, Int(root, "money.cost.compute"));
  DI_ASSIGN_OR_RETURN(record->cost.operations, Int(root, "money.cost.operations"));
  return OkStatus();
}

Status ReadKind(const json::value& root, OverheadKind* kind) {
  DI_ASSIGN_OR_RETURN(const std::string name, Text(root, "kind"));
  for (size_t i = 0; i < kNumOverheadKinds; ++i) {
    if (name != kKindNames[i]) continue;
    *kind = static_cast<OverheadKind>(i);
    return OkStatus();
  }
  return Corrupt("kind", "is not known");
}

}  // namespace

std::string_view OverheadKindName(OverheadKind kind) {
  return kKindNames[static_cast<size_t>(kind)];
}

void CostOverhead(const CostBook& book, OverheadRecord* record) {
  record->cost_book = book.id();
  record->cost = book.Price({.device_ns = record->device_ns});
}

std::string FormatOverheadLine(const OverheadRecord& record) {
  std::string line;
  JsonWriter json(&line);
  const auto text = [&json](std::string_view key, const std::optional<std::string>& value) {
    if (value) {
      json.Field(key, ReplaceInvalidUtf8(*value));
    } else {
      json.Key(key).Null();
    }
  };
  json.BeginObject().Field("schema", kOverheadSchema).Field("kind", OverheadKindName(record.kind));
  json.Key("scope").BeginObject();
  const OverheadScope& scope = record.scope;
  text("build_commit", scope.build_commit);
  text("config_hash", scope.config_hash);
  text("model_name", scope.model_name);
  text("host_id", scope.host_id);
  text("role", scope.role);
  text("process", scope.process);
  text("run_id", scope.run_id);
  json.EndObject().Field("device", record.device);
  json.Key("time_ns").BeginObject().Field("from", record.from_ns).Field("to", record.to_ns);
  json.Key("wall_utc").BeginObject().Field("from", FormatUtc(record.from_utc_us));
  json.Field("to", FormatUtc(record.to_utc_us)).EndObject().EndObject();
  json.Field("device_ns", record.device_ns).Field("requests_ns", record.requests_ns);
  json.Key("is_last").Bool(record.is_last);
  json.Key("money").BeginObject();
  if (record.cost_book) {
    json.Key("cost").BeginObject().Field("compute", record.cost.compute);
    json.Field("operations", record.cost.operations).EndObject();
  } else {
    json.Key("cost").Null();
  }
  text("cost_book", record.cost_book);
  json.EndObject().EndObject();
  return line;
}

Result<OverheadRecord> ParseOverheadLine(std::string_view text) {
  boost::system::error_code error;
  const json::value root = json::parse(text, error);
  if (error || !root.is_object()) return DataCorruption("not a JSON object");
  OverheadRecord record;
  DI_RETURN_IF_ERROR(ReadKind(root, &record.kind));
  DI_RETURN_IF_ERROR(ReadScope(root, &record.scope));
  DI_ASSIGN_OR_RETURN(record.device, Int(root, "device"));
  DI_ASSIGN_OR_RETURN(record.from_ns, Int(root, "time_ns.from"));
  DI_ASSIGN_OR_RETURN(record.to_ns, Int(root, "time_ns.to"));
  DI_ASSIGN_OR_RETURN(record.from_utc_us, Instant(root, "time_ns.wall_utc.from"));
  DI_ASSIGN_OR_RETURN(record.to_utc_us, Instant(root, "time_ns.wall_utc.to"));
  DI_ASSIGN_OR_RETURN(record.device_ns, Int(root, "device_ns"));
  DI_ASSIGN_OR_RETURN(record.requests_ns, Int(root, "requests_ns"));
  const json::value* is_last = FindAtPath(root, "is_last");
  if (is_last == nullptr || !is_last->is_bool()) return Corrupt("is_last", "must be a boolean");
  record.is_last = is_last->get_bool();
  DI_RETURN_IF_ERROR(ReadCost(root, &record));
  return record;
}

}  // namespace deepinfer
