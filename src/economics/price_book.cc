#include "economics/price_book.h"

#include <algorithm>
#include <boost/json.hpp>
#include <chrono>
#include <fstream>
#include <optional>
#include <sstream>

#include "base/sha256.h"
#include "economics/utc_time.h"

namespace deepinfer {
namespace json = boost::json;

namespace {

constexpr int32_t kMinutesOfDay = 24 * 60;

// Minutes of "HH:MM", "24:00" included.
std::optional<int32_t> MinuteOf(std::string_view text) {
  if (text.size() != 5 || text[2] != ':') return std::nullopt;
  int32_t parts[2] = {0, 0};
  for (const size_t i : {0, 1, 3, 4}) {
    if (text[i] < '0' || text[i] > '9') return std::nullopt;
    int32_t& part = parts[i / 3];
    part = part * 10 + (text[i] - '0');
  }
  const int32_t minute = parts[0] * 60 + parts[1];
  if (parts[1] > 59 || minute > kMinutesOfDay) return std::nullopt;
  return minute;
}

}  // namespace

// Reads one book; the first fault stops it.
class PriceBookReader {
 public:
  explicit PriceBookReader(std::string_view text) : text_(text) {}

  Result<PriceBook> Read() {
    boost::system::error_code error;
    const json::value document = json::parse(text_, error);
    if (error || !document.is_object()) return InvalidRequest("price book: not a JSON object");
    const json::object& root = document.get_object();
    book_.sha256_ = Sha256Hex(text_);
    DI_RETURN_IF_ERROR(CheckKeys(
        root, "",
        {"id", "currency", "effective_from", "tz", "clock", "peak", "holidays", "per_mtok"}));
    DI_RETURN_IF_ERROR(Text(root, "id", &book_.id_));
    DI_RETURN_IF_ERROR(Text(root, "currency", &book_.currency_));
    std::string from, zone, clock;
    DI_RETURN_IF_ERROR(Text(root, "effective_from", &from));
    if (!ParseUtc(from)) return Bad("effective_from", "must be like 2026-09-10T00:00:00Z");
    DI_RETURN_IF_ERROR(Text(root, "tz", &zone));
    if (zone != "UTC") return Bad("tz", "must be UTC");
    DI_RETURN_IF_ERROR(Text(root, "clock", &clock));
    if (clock != "recv" && clock != "closed") return Bad("clock", "must be recv or closed");
    book_.clocks_reception_ = clock == "recv";
    DI_RETURN_IF_ERROR(ReadPeak(root));
    DI_RETURN_IF_ERROR(ReadHolidays(root));
    DI_RETURN_IF_ERROR(ReadPrices(root));
    return std::move(book_);
  }

 private:
  static Status Bad(std::string_view field, std::string_view what) {
    return InvalidRequest("price book: " + std::string(field) + " " + std::string(what));
  }

  static Status CheckKeys(const json::object& object, std::string_view path,
                          std::initializer_list<std::string_view> known) {
    for (const auto& member : object) {
      const std::string_view key(member.key().data(), member.key().size());
      if (std::find(known.begin(), known.end(), key) == known.end()) {
        return Bad(std::string(path) + std::string(key), "is not a known field");
      }
    }
    return OkStatus();
  }

  static Status Text(const json::object& object, std::string_view key, std::string* out) {
    const json::value* value = object.if_contains({key.data(), key.size()});
    if (value == nullptr || !value->is_string() || value->get_string().empty()) {
      return Bad(key, "must be a string that is not empty");
    }
    *out = std::string(value->get_string());
    return OkStatus();
  }

  Status ReadPeak(const json::object& root) {
    const json::value* peak = root.if_contains("peak");
    if (peak == nullptr) return OkStatus();
    if (!peak->is_array()) return Bad("peak", "must be an array");
    for (const json::value& entry : peak->get_array()) {
      if (!entry.is_object()) return Bad("peak", "must hold objects");
      const json::object& object = entry.get_object();
      DI_RETURN_IF_ERROR(CheckKeys(object, "peak.", {"days", "from", "to"}));
      PriceBook::PeakHours hours;
      const json::value* days = object.if_contains("days");
      if (days == nullptr || !days->is_array()) return Bad("peak.days", "must be an array");
      for (const json::value& day : days->get_array()) {
        if (!day.is_int64() || day.get_int64() < 1 || day.get_int64() > 7) {
          return Bad("peak.days", "must be numbers from 1 (Monday) to 7");
        }
        hours.days.set(static_cast<size_t>(day.get_int64()));
      }
      std::string from, to;
      DI_RETURN_IF_ERROR(Text(object, "from", &from));
      DI_RETURN_IF_ERROR(Text(object, "to", &to));
      const auto from_minute = MinuteOf(from), to_minute = MinuteOf(to);
      if (!from_minute || !to_minute || *from_minute >= *to_minute) {
        return Bad("peak", "needs from before to, both like 01:00");
      }
      hours.from_minute = *from_minute;
      hours.to_minute = *to_minute;
      book_.peak_.push_back(hours);
    }
    return OkStatus();
  }

  Status ReadHolidays(const json::object& root) {
    const json::value* holidays = root.if_contains("holidays");
    if (holidays == nullptr) return OkStatus();
    if (!holidays->is_array()) return Bad("holidays", "must be an array");
    for (const json::value& day : holidays->get_array()) {
      if (!day.is_string() || day.get_string().size() != 10 ||
          !ParseUtc({day.get_string().data(), day.get_string().size()})) {
        return Bad("holidays", "must be dates like 2026-10-01");
      }
      book_.holidays_.insert(std::string(day.get_string()));
    }
    return OkStatus();
  }

  Status ReadPrices(const json::object& root) {
    const json::value* prices = root.if_contains("per_mtok");
    if (prices == nullptr || !prices->is_object()) return Bad("per_mtok", "must be an object");
    const json::object& windows = prices->get_object();
    DI_RETURN_IF_ERROR(CheckKeys(windows, "per_mtok.", {"flat", "offpeak", "peak"}));
    book_.is_flat_ = windows.contains("flat");
    if (book_.is_flat_) {
      if (windows.size() != 1 || !book_.peak_.empty()) {
        return Bad("per_mtok.flat", "does not go with peak hours or other windows");
      }
      return ReadWindow(windows, PriceWindow::kFlat);
    }
    DI_RETURN_IF_ERROR(ReadWindow(windows, PriceWindow::kOffPeak));
    return ReadWindow(windows, PriceWindow::kPeak);
  }

  Status ReadWindow(const json::object& windows, PriceWindow window) {
    const std::string name(PriceWindowName(window));
    const json::value* entry = windows.if_contains(name);
    if (entry == nullptr || !entry->is_object()) {
      return Bad("per_mtok." + name, "must be an object of prices");
    }
    const json::object& object = entry->get_object();
    const std::string path = "per_mtok." + name + ".";
    DI_RETURN_IF_ERROR(CheckKeys(object, path, {"hit", "miss", "output", "cache_write"}));
    TokenPrices& prices = book_.prices_[static_cast<size_t>(window)];
    const std::pair<const char*, Pico*> fields[] = {{"hit", &prices.hit},
                                                    {"miss", &prices.miss},
                                                    {"output", &prices.output},
                                                    {"cache_write", &prices.cache_write}};
    for (const auto& [key, out] : fields) {
      std::string text;
      const Status status = Text(object, key, &text);
      if (!status.ok()) return Bad(path + key, "must be a decimal in a string");
      const Result<Pico> price = ParsePricePerMillion(text);
      if (!price.ok()) return Bad(path + key, price.status().message());
      *out = *price;
    }
    return OkStatus();
  }

  std::string_view text_;
  PriceBook book_;
};

std::string_view PriceWindowName(PriceWindow window) {
  constexpr std::string_view kNames[] = {"flat", "offpeak", "peak"};
  return kNames[static_cast<size_t>(window)];
}

Result<PriceBook> PriceBook::Parse(std::string_view text) { return PriceBookReader(text).Read(); }

Result<PriceBook> PriceBook::Shipped(std::string_view id) {
  for (const auto& [known, text] : ShippedPriceBooks()) {
    if (known == id) return Parse(text);
  }
  return NotFound("price book " + std::string(id) + " is not a shipped one");
}

Result<PriceBook> PriceBook::Load(const std::string& id_or_path) {
  Result<PriceBook> shipped = Shipped(id_or_path);
  if (shipped.ok()) return shipped;
  std::ifstream file(id_or_path, std::ios::binary);
  std::ostringstream bytes;  // refuses a folder by its state, where iterators would throw
  bytes << file.rdbuf();
  const std::string text = bytes.str();
  if (!file || !bytes) {
    std::string known;
    for (const auto& [id, unused] : ShippedPriceBooks()) known += "\n  " + std::string(id);
    return NotFound("price book " + id_or_path + ": neither a readable file nor one of" + known);
  }
  Result<PriceBook> book = Parse(text);
  return book.ok() ? std::move(book) : Result<PriceBook>(book.status().Annotate(id_or_path));
}

PriceWindow PriceBook::WindowAt(int64_t utc_us) const {
  if (is_flat_) return PriceWindow::kFlat;
  using std::chrono::microseconds;
  const std::chrono::sys_time<microseconds> at{microseconds(utc_us)};
  const auto day = std::chrono::floor<std::chrono::days>(at);
  const auto minute = std::chrono::floor<std::chrono::minutes>(at - day).count();
  const std::string date = FormatUtc(utc_us).substr(0, 10);
  if (holidays_.contains(date)) return PriceWindow::kOffPeak;
  const unsigned weekday = std::chrono::weekday(day).iso_encoding();
  const bool is_peak = std::any_of(peak_.begin(), peak_.end(), [&](const PeakHours& hours) {
    return hours.days.test(weekday) && minute >= hours.from_minute && minute < hours.to_minute;
  });
  return is_peak ? PriceWindow::kPeak : PriceWindow::kOffPeak;
}

Revenue PriceBook::Price(PriceWindow window, const BilledTokens& tokens) const {
  const TokenPrices& prices = PricesOf(window);
  // A book without a write price bills written tokens as misses.
  const int64_t written = prices.cache_write == 0 ? 0 : tokens.cache_written;
  Revenue revenue;
  revenue.hit = tokens.cached * prices.hit;
  revenue.miss = (tokens.prompt - tokens.cached - written) * prices.miss;
  revenue.cache_write = written * prices.cache_write;
  revenue.output = tokens.generated * prices.output;
  return revenue;
}

}  // namespace deepinfer
