#include "economics/money.h"

#include <algorithm>

namespace deepinfer {
namespace {

constexpr size_t kMoneyDigits = 12;
constexpr size_t kPriceDigits = 6;   // one pico-unit per token
constexpr Pico kMostPrice = 10'000;  // per million tokens; 2^29 of them fit 64 bits
constexpr Pico kMostAmount = 1'000'000;

// "0.15" as a whole number of the last of `digits` digits behind the point.
Result<Pico> ParseDecimal(std::string_view what, std::string_view text, size_t digits, Pico most) {
  const auto refuse = [&](const std::string& why) -> Status {
    return InvalidRequest(std::string(what) + " \"" + std::string(text.substr(0, 40)) + "\" " +
                          why);
  };
  const size_t point = text.find('.');
  const std::string_view whole = text.substr(0, point);
  const std::string_view part =
      point == std::string_view::npos ? std::string_view() : text.substr(point + 1);
  if (whole.empty() || (point != std::string_view::npos && part.empty())) {
    return refuse("is not a decimal such as 0.15");
  }
  if (part.size() > digits) {
    return refuse("has more than " + std::to_string(digits) + " digits after the point");
  }
  Pico value = 0;
  for (const char c : whole) {
    if (c < '0' || c > '9') return refuse("is not a decimal such as 0.15");
    value = value * 10 + (c - '0');
    if (value > most) return refuse("is above " + std::to_string(most));
  }
  for (size_t i = 0; i < digits; ++i) {
    const char c = i < part.size() ? part[i] : '0';
    if (c < '0' || c > '9') return refuse("is not a decimal such as 0.15");
    value = value * 10 + (c - '0');
  }
  return value;
}

}  // namespace

std::string FormatMoney(PicoSum pico) {
  const bool negative = pico < 0;
  std::string digits;  // lowest first
  for (PicoSum rest = pico; rest != 0 || digits.size() <= kMoneyDigits; rest /= 10) {
    const int digit = static_cast<int>(rest % 10);
    digits += static_cast<char>('0' + (negative ? -digit : digit));
  }
  digits.insert(kMoneyDigits, 1, '.');
  if (negative) digits += '-';
  std::reverse(digits.begin(), digits.end());
  return digits;
}

Result<Pico> ParsePricePerMillion(std::string_view text) {
  return ParseDecimal("price", text, kPriceDigits, kMostPrice);
}

Result<Pico> ParseAmount(std::string_view text) {
  return ParseDecimal("amount", text, kMoneyDigits, kMostAmount);
}

}  // namespace deepinfer
