#include "server/cache_controls.h"

#include <charconv>

namespace deepinfer {

std::optional<int64_t> ParseCacheLifetimeSeconds(std::string_view text) {
  constexpr int64_t kSecondsPerMinute = 60;
  constexpr int64_t kSecondsPerHour = 3600;
  constexpr int64_t kSecondsPerDay = 86400;
  constexpr int64_t kMaxCount = 1000000;  // keeps the product far from overflow

  if (text == "in_memory" || text == "in-memory") return 0;
  int64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  const std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  if (error != std::errc() || count < 1 || count > kMaxCount) return std::nullopt;
  if (unit == "m") return count * kSecondsPerMinute;
  if (unit == "h") return count * kSecondsPerHour;
  if (unit == "d") return count * kSecondsPerDay;
  return std::nullopt;
}

}  // namespace deepinfer
