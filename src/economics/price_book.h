// Price books: what tokens earn, by class and window of the week (economics.md §4).
// Thread rule: immutable after load. Owner: whoever prices lines with it.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "economics/money.h"

namespace deepinfer {

enum class PriceWindow : unsigned char { kFlat, kOffPeak, kPeak };

// "flat", "offpeak", "peak"
std::string_view PriceWindowName(PriceWindow window);

// Pico-units per token.
struct TokenPrices {
  Pico hit = 0;
  Pico miss = 0;
  Pico output = 0;
  Pico cache_write = 0;
};

// What a client's usage object says, and all that revenue depends on.
struct BilledTokens {
  int64_t prompt = 0;
  int64_t cached = 0;         // part of prompt
  int64_t cache_written = 0;  // part of what was not cached
  int64_t generated = 0;
};

struct Revenue {
  Pico hit = 0;
  Pico miss = 0;
  Pico output = 0;
  Pico cache_write = 0;

  PicoSum Total() const { return PicoSum{hit} + miss + output + cache_write; }
  friend bool operator==(const Revenue&, const Revenue&) = default;
};

class PriceBook {
 public:
  // invalid_request names the field.
  static Result<PriceBook> Parse(std::string_view json);

  // A shipped book by its id. not_found.
  static Result<PriceBook> Shipped(std::string_view id);

  // A shipped book by its id, else the file at this path. not_found, invalid_request.
  static Result<PriceBook> Load(const std::string& id_or_path);

  const std::string& id() const { return id_; }
  const std::string& currency() const { return currency_; }
  const std::string& sha256() const { return sha256_; }  // of the text it was read from

  PriceWindow WindowAt(int64_t utc_us) const;
  // The instant of a request that chooses its window: its reception or its end.
  int64_t ClockOf(int64_t recv_us, int64_t closed_us) const {
    return clocks_reception_ ? recv_us : closed_us;
  }
  const TokenPrices& PricesOf(PriceWindow window) const {
    return prices_[static_cast<size_t>(window)];
  }

  // Precondition: counts of one request, so that amounts fit 64 bits.
  Revenue Price(PriceWindow window, const BilledTokens& tokens) const;

 private:
  struct PeakHours {
    std::bitset<8> days;  // 1 is Monday
    int32_t from_minute = 0;
    int32_t to_minute = 0;  // excluded
  };
  friend class PriceBookReader;

  std::string id_;
  std::string currency_;
  std::string sha256_;
  bool clocks_reception_ = true;
  bool is_flat_ = false;
  std::vector<PeakHours> peak_;
  std::set<std::string, std::less<>> holidays_;  // "2026-10-01"
  std::array<TokenPrices, 3> prices_{};
};

// Ids and texts of the books that come with the program.
std::span<const std::pair<std::string_view, std::string_view>> ShippedPriceBooks();

inline constexpr std::string_view kDefaultPriceBook = "deepseek-flash-2026-09-10";

}  // namespace deepinfer
