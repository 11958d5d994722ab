#include "base/log.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <iterator>
#include <memory>

#include "base/json_escape.h"
#include "base/utf8.h"

namespace deepinfer {
namespace {

// spdlog's registry is process-wide; the format belongs beside it.
std::atomic<LogFormat> g_format{LogFormat::kText};

spdlog::level::level_enum SpdlogLevel(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      return spdlog::level::off;
  }
  return spdlog::level::info;
}

std::string_view LevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
    case LogLevel::kOff:
      return "off";
  }
  return "info";
}

// Field values come from clients: the line must stay one valid JSON object whatever they hold.
void AppendQuoted(std::string& out, std::string_view text) {
  out += '"';
  AppendJsonEscaped(ReplaceInvalidUtf8(text), &out);
  out += '"';
}

bool NeedsQuotes(std::string_view text) {
  if (text.empty()) return true;
  for (const char c : text) {
    if (static_cast<unsigned char>(c) <= 0x20 || static_cast<unsigned char>(c) >= 0x7F ||
        c == '"' || c == '\\' || c == '=') {
      return true;
    }
  }
  return false;
}

void AppendValue(std::string& out, const LogField& field, LogFormat format) {
  if (const auto* text = std::get_if<std::string>(&field.value)) {
    if (format == LogFormat::kText && !NeedsQuotes(*text)) {
      out += *text;
    } else {
      AppendQuoted(out, *text);
    }
  } else if (const auto* flag = std::get_if<bool>(&field.value)) {
    out += *flag ? "true" : "false";
  } else if (const auto* number = std::get_if<int64_t>(&field.value)) {
    fmt::format_to(std::back_inserter(out), "{}", *number);
  } else if (const auto* natural = std::get_if<uint64_t>(&field.value)) {
    fmt::format_to(std::back_inserter(out), "{}", *natural);
  } else if (const auto* real = std::get_if<double>(&field.value)) {
    if (std::isfinite(*real)) {
      fmt::format_to(std::back_inserter(out), "{}", *real);
    } else {
      out += "null";
    }
  }
}

std::string UtcTimestamp() {
  const auto now =
      std::chrono::time_point_cast<std::chrono::microseconds>(std::chrono::system_clock::now());
  const auto seconds = std::chrono::time_point_cast<std::chrono::seconds>(now);
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:06}Z",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(seconds)),
                     (now - seconds).count());
}

}  // namespace

void InitLogging(LogLevel level, LogFormat format) {
  g_format.store(format, std::memory_order_relaxed);
  auto logger = std::make_shared<spdlog::logger>("deepinfer",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%v");
  logger->set_level(SpdlogLevel(level));
  logger->flush_on(spdlog::level::warn);
  spdlog::set_default_logger(std::move(logger));
}

std::string FormatLogLine(LogFormat format, LogLevel level, std::string_view event,
                          std::initializer_list<LogField> fields, std::string_view timestamp) {
  std::string line;
  if (format == LogFormat::kText) {
    line = fmt::format("{} {:<7} {}", timestamp, LevelName(level), event);
    for (const LogField& field : fields) {
      line += ' ';
      line += field.key;
      line += '=';
      AppendValue(line, field, format);
    }
    return line;
  }
  line = fmt::format("{{\"ts\":\"{}\",\"level\":\"{}\",\"event\":", timestamp, LevelName(level));
  AppendQuoted(line, event);
  for (const LogField& field : fields) {
    line += ',';
    AppendQuoted(line, field.key);
    line += ':';
    AppendValue(line, field, format);
  }
  line += '}';
  return line;
}

void Log(LogLevel level, std::string_view event, std::initializer_list<LogField> fields) {
  spdlog::logger* logger = spdlog::default_logger_raw();
  const auto spdlog_level = SpdlogLevel(level);
  if (logger == nullptr || !logger->should_log(spdlog_level)) return;
  const LogFormat format = g_format.load(std::memory_order_relaxed);
  logger->log(spdlog_level,
              spdlog::string_view_t(FormatLogLine(format, level, event, fields, UtcTimestamp())));
}

}  // namespace deepinfer
