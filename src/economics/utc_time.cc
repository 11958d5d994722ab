#include "economics/utc_time.h"

#include <fmt/format.h>

#include <chrono>

namespace deepinfer {
namespace {

using std::chrono::days;
using std::chrono::hh_mm_ss;
using std::chrono::microseconds;
using std::chrono::sys_days;
using std::chrono::sys_time;
using std::chrono::year_month_day;

constexpr size_t kDateLength = 10;  // 2026-11-30
constexpr size_t kTimeLength = 8;   // 14:05:06

// The number that fills text[at, at + size); nothing when one of them is no digit.
std::optional<int> Digits(std::string_view text, size_t at, size_t size) {
  if (at + size > text.size()) return std::nullopt;
  int value = 0;
  for (const char c : text.substr(at, size)) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + (c - '0');
  }
  return value;
}

std::optional<sys_days> ParseDate(std::string_view text) {
  const auto year = Digits(text, 0, 4), month = Digits(text, 5, 2), day = Digits(text, 8, 2);
  if (!year || !month || !day || text[4] != '-' || text[7] != '-') return std::nullopt;
  const year_month_day date{std::chrono::year(*year),
                            std::chrono::month(static_cast<unsigned>(*month)),
                            std::chrono::day(static_cast<unsigned>(*day))};
  if (!date.ok()) return std::nullopt;
  return sys_days(date);
}

}  // namespace

std::string FormatUtc(int64_t utc_us) {
  const sys_time<microseconds> at{microseconds(utc_us)};
  const auto day = std::chrono::floor<days>(at);
  const year_month_day date(day);
  const hh_mm_ss time(at - day);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
                     time.hours().count(), time.minutes().count(), time.seconds().count(),
                     time.subseconds().count());
}

std::optional<int64_t> ParseUtc(std::string_view text) {
  const auto day = ParseDate(text.substr(0, kDateLength));
  if (!day) return std::nullopt;
  microseconds since_midnight{0};
  if (text.size() > kDateLength) {
    const std::string_view time = text.substr(kDateLength + 1);
    const auto hour = Digits(time, 0, 2), minute = Digits(time, 3, 2), second = Digits(time, 6, 2);
    if (text[kDateLength] != 'T' || !time.ends_with('Z') || !hour || !minute || !second) {
      return std::nullopt;
    }
    if (time[2] != ':' || time[5] != ':' || *hour > 23 || *minute > 59 || *second > 59) {
      return std::nullopt;
    }
    int64_t fraction_us = 0;
    if (time.size() > kTimeLength + 1) {
      const size_t size = time.size() - kTimeLength - 2;
      const auto digits = Digits(time, kTimeLength + 1, size);
      if (time[kTimeLength] != '.' || size < 1 || size > 6 || !digits) return std::nullopt;
      fraction_us = *digits;
      for (size_t i = size; i < 6; ++i) fraction_us *= 10;
    }
    since_midnight = std::chrono::hours(*hour) + std::chrono::minutes(*minute) +
                     std::chrono::seconds(*second) + microseconds(fraction_us);
  }
  return std::chrono::duration_cast<microseconds>(day->time_since_epoch() + since_midnight).count();
}

std::string UtcHourName(int64_t utc_us) {
  const std::string text = FormatUtc(utc_us);
  return text.substr(0, 4) + text.substr(5, 2) + text.substr(8, 5);
}

}  // namespace deepinfer
