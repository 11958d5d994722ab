#include "economics/price_book.h"

#include <gtest/gtest.h>

#include <string>

#include "economics/utc_time.h"

namespace deepinfer {
namespace {

PriceBook Book(std::string_view id) { return PriceBook::Load(std::string(id)).value(); }

PriceWindow WindowAt(const PriceBook& book, std::string_view utc) {
  return book.WindowAt(ParseUtc(utc).value());
}

TEST(PriceBook, EveryShippedBookLoadsUnderItsId) {
  EXPECT_EQ(ShippedPriceBooks().size(), 7u);
  for (const auto& [id, text] : ShippedPriceBooks()) {
    const auto book = PriceBook::Load(std::string(id));
    ASSERT_TRUE(book.ok()) << id << ": " << book.status().ToString();
    EXPECT_EQ(book->id(), id);
    EXPECT_EQ(book->sha256().size(), 64u);
  }
}

TEST(PriceBook, PeakHoursIncludeTheirBeginAndNotTheirEnd) {
  const PriceBook book = Book(kDefaultPriceBook);
  // A Tuesday.
  EXPECT_EQ(WindowAt(book, "2026-09-15T00:59:59.9Z"), PriceWindow::kOffPeak);
  EXPECT_EQ(WindowAt(book, "2026-09-15T01:00:00Z"), PriceWindow::kPeak);
  EXPECT_EQ(WindowAt(book, "2026-09-15T03:59:59.9Z"), PriceWindow::kPeak);
  EXPECT_EQ(WindowAt(book, "2026-09-15T04:00:00Z"), PriceWindow::kOffPeak);
  EXPECT_EQ(WindowAt(book, "2026-09-15T06:00:00Z"), PriceWindow::kPeak);
  EXPECT_EQ(WindowAt(book, "2026-09-15T09:59:59.999999Z"), PriceWindow::kPeak);
  EXPECT_EQ(WindowAt(book, "2026-09-15T10:00:00Z"), PriceWindow::kOffPeak);
  // A Saturday, a Friday, a holiday on a Thursday.
  EXPECT_EQ(WindowAt(book, "2026-09-19T02:00:00Z"), PriceWindow::kOffPeak);
  EXPECT_EQ(WindowAt(book, "2026-09-18T02:00:00Z"), PriceWindow::kPeak);
  EXPECT_EQ(WindowAt(book, "2026-10-01T02:00:00Z"), PriceWindow::kOffPeak);
  EXPECT_EQ(WindowAt(Book("flat-example"), "2026-09-15T02:00:00Z"), PriceWindow::kFlat);
}

TEST(PriceBook, PeakIsThirtyFiveOfTheHoursOfAWeek) {
  const PriceBook book = Book(kDefaultPriceBook);
  const int64_t monday = ParseUtc("2026-09-14").value();
  int peak_hours = 0;
  for (int64_t hour = 0; hour < 168; ++hour) {
    peak_hours += book.WindowAt(monday + hour * 3'600'000'000) == PriceWindow::kPeak;
  }
  EXPECT_EQ(peak_hours, 35);
}

TEST(PriceBook, PricesTheWorkedExample) {
  const PriceBook book = Book(kDefaultPriceBook);
  const BilledTokens tokens{
      .prompt = 10240, .cached = 9856, .cache_written = 384, .generated = 500};
  const Revenue peak = book.Price(WindowAt(book, "2026-09-15T02:00:00Z"), tokens);
  EXPECT_EQ(peak.hit, 59'136'000);
  EXPECT_EQ(peak.miss, 115'200'000);
  EXPECT_EQ(peak.output, 600'000'000);
  EXPECT_EQ(peak.cache_write, 0);
  EXPECT_EQ(FormatMoney(peak.Total()), "0.000774336000");
  EXPECT_EQ(FormatMoney(book.Price(PriceWindow::kOffPeak, tokens).Total()), "0.000387168000");
}

std::string With(std::string_view field, std::string_view value) {
  std::string text(ShippedPriceBooks()[0].second);
  const size_t at = text.find(field);
  EXPECT_NE(at, std::string::npos) << field;
  return text.replace(at, field.size(), value);
}

TEST(PriceBook, WrittenTokensAreBilledWhereTheBookHasAPriceForThem) {
  std::string text(ShippedPriceBooks()[6].second);
  text.replace(text.find(R"("cache_write":"0")"), 17, R"("cache_write":"3")");
  const PriceBook book = PriceBook::Parse(text).value();
  const Revenue revenue = book.Price(
      PriceWindow::kFlat, {.prompt = 100, .cached = 10, .cache_written = 30, .generated = 1});
  EXPECT_EQ(revenue.miss, 60 * 1'000'000);
  EXPECT_EQ(revenue.cache_write, 30 * 3'000'000);
}

TEST(PriceBook, FaultsAreNamed) {
  const std::pair<std::string, const char*> faults[] = {
      {"[]", "not a JSON object"},
      {"{", "not a JSON object"},
      {With(R"("hit":"0.003")", R"("hit":"0.0030001")"), "per_mtok.offpeak.hit"},
      {With(R"("hit":"0.003")", R"("hit":0.003)"), "per_mtok.offpeak.hit"},
      {With(R"("tz":"UTC")", R"("tz":"Asia/Shanghai")"), "tz"},
      {With(R"("clock":"recv")", R"("clock":"start")"), "clock"},
      {With(R"("from":"01:00")", R"("from":"05:00")"), "peak"},
      {With(R"("days":[1,2,3,4,5])", R"("days":[0])"), "peak.days"},
      {With("2026-10-01", "2026-13-01"), "holidays"},
      {With(R"("currency":"USD")", R"("currency":"")"), "currency"},
      {With(R"("peak":{"hit")", R"("evening":{"hit")"), "per_mtok.evening"},
      {With(R"("id":)", R"("name":"x","id":)"), "name"},
  };
  for (const auto& [text, field] : faults) {
    const auto book = PriceBook::Parse(text);
    ASSERT_FALSE(book.ok()) << text;
    EXPECT_NE(book.status().message().find(field), std::string::npos)
        << book.status().message() << " does not name " << field;
  }
  EXPECT_EQ(PriceBook::Load("/no/such/book").status().code(), StatusCode::kNotFound);
}

TEST(UtcTime, ReadsWhatItWrites) {
  for (const std::string_view text : {"1970-01-01T00:00:00.000000Z", "2026-02-28T23:59:59.999999Z",
                                      "2028-02-29T12:00:00.000001Z"}) {
    EXPECT_EQ(FormatUtc(ParseUtc(text).value()), text);
  }
  EXPECT_EQ(ParseUtc("2026-11-30"), ParseUtc("2026-11-30T00:00:00Z"));
  EXPECT_EQ(UtcHourName(ParseUtc("2026-11-30T14:05:06Z").value()), "20261130T14");
  for (const char* bad : {"", "2026", "2026-02-30", "2026-11-30T14:05:06", "2026-11-30 14:05:06Z",
                          "2026-11-30T24:00:00Z", "2026-11-30T14:05:06+08:00",
                          "2026-11-30T14:05:06.Z", "2026-11-30T14:05:06.1234567Z"}) {
    EXPECT_FALSE(ParseUtc(bad)) << bad;
  }
}

}  // namespace
}  // namespace deepinfer
