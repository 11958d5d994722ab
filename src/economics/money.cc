#include "economics/money.h"

#include <algorithm>

namespace deepinfer {
namespace {

constexpr int kMoneyDigits = 12;
constexpr size_t kPriceDigits = 6;        // one pico-unit per token
constexpr Pico kMostPrice = 10'000;       // per million tokens; 2^29 of them fit 64 bits
constexpr Pico kPicoPerUnit = 1'000'000;  // a price of 1 per million tokens

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
  const auto refuse = [&](const char* why) -> Status {
    return InvalidRequest("price \"" + std::string(text.substr(0, 40)) + "\" " + why);
  };
  const size_t point = text.find('.');
  const std::string_view whole = text.substr(0, point);
  const std::string_view part =
      point == std::string_view::npos ? std::string_view() : text.substr(point + 1);
  if (whole.empty() || (point != std::string_view::npos && part.empty())) {
    return refuse("is not a decimal such as 0.15");
  }
  if (part.size() > kPriceDigits) return refuse("has more than six digits after the point");
  Pico units = 0;
  for (const char c : whole) {
    if (c < '0' || c > '9') return refuse("is not a decimal such as 0.15");
    units = units * 10 + (c - '0');
    if (units > kMostPrice) return refuse("is above 10000 per million tokens");
  }
  Pico fraction = 0;
  for (const char c : part) {
    if (c < '0' || c > '9') return refuse("is not a decimal such as 0.15");
    fraction = fraction * 10 + (c - '0');
  }
  for (size_t i = part.size(); i < kPriceDigits; ++i) fraction *= 10;
  return units * kPicoPerUnit + fraction;
}

}  // namespace deepinfer
