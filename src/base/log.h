// Structured log lines: an event name and key-value fields, as text or JSON (api.md §17).
// Thread rule: any thread. Prompt text and keys never go through here.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "base/status.h"

namespace deepinfer {

enum class LogLevel : unsigned char { kDebug, kInfo, kWarning, kError, kOff };
enum class LogFormat : unsigned char { kText, kJson };

// Sets level and format of the process; called once by cli/ before threads start.
void InitLogging(LogLevel level, LogFormat format);

struct LogField {
  std::string_view key;
  std::variant<bool, int64_t, uint64_t, double, std::string> value;

  LogField(std::string_view k, bool v) : key(k), value(v) {}
  LogField(std::string_view k, int v) : key(k), value(static_cast<int64_t>(v)) {}
  LogField(std::string_view k, int64_t v) : key(k), value(v) {}
  LogField(std::string_view k, uint64_t v) : key(k), value(v) {}
  LogField(std::string_view k, double v) : key(k), value(v) {}
  LogField(std::string_view k, const char* v) : key(k), value(std::string(v)) {}
  LogField(std::string_view k, std::string_view v) : key(k), value(std::string(v)) {}
  LogField(std::string_view k, std::string v) : key(k), value(std::move(v)) {}
  LogField(std::string_view k, const Status& v) : key(k), value(v.ToString()) {}
};

// Log(LogLevel::kInfo, "server.ready", {{"port", 8000}, {"model", name}})
void Log(LogLevel level, std::string_view event, std::initializer_list<LogField> fields = {});

// The line Log writes, without the newline; timestamp is RFC 3339 UTC. Always one line, and in
// JSON always one valid object, whatever bytes the fields hold.
std::string FormatLogLine(LogFormat format, LogLevel level, std::string_view event,
                          std::initializer_list<LogField> fields, std::string_view timestamp);

}  // namespace deepinfer
