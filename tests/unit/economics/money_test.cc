#include "economics/money.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <limits>

namespace deepinfer {
namespace {

TEST(Money, PrintsTwelveDigitsBehindThePoint) {
  EXPECT_EQ(FormatMoney(0), "0.000000000000");
  EXPECT_EQ(FormatMoney(774'336'000), "0.000774336000");
  EXPECT_EQ(FormatMoney(-1), "-0.000000000001");
  EXPECT_EQ(FormatMoney(PicoSum{1'000'000'000'000} * 42), "42.000000000000");
}

TEST(Money, PricesAreExactOrRefused) {
  EXPECT_EQ(ParsePricePerMillion("0.003").value(), 3000);
  EXPECT_EQ(ParsePricePerMillion("0.0028").value(), 2800);
  EXPECT_EQ(ParsePricePerMillion("0.000001").value(), 1);
  EXPECT_EQ(ParsePricePerMillion("2").value(), 2'000'000);
  for (const char* bad : {"", ".", "1.", ".5", "0.0000001", "-1", "+1", "1e3", "1,5", "1 ", "NaN",
                          "99999999999999999999"}) {
    EXPECT_FALSE(ParsePricePerMillion(bad).ok()) << bad;
  }
}

TEST(Money, ABillionLinesOfNineDollarsAddUp) {
  // One billion lines in a thousand blocks of equal ones.
  PicoSum sum = 0;
  constexpr Pico kNineDollars = 9'000'000'000'000;
  for (int block = 0; block < 1000; ++block) sum += PicoSum{kNineDollars} * 1'000'000;
  EXPECT_EQ(FormatMoney(sum), "9000000000.000000000000");
  EXPECT_GT(sum, PicoSum{std::numeric_limits<int64_t>::max()});
}

RC_GTEST_PROP(Money, PrintedAmountsReadBack, (const Pico& pico)) {
  const std::string text = FormatMoney(pico);
  std::string digits;
  for (const char c : text) {
    if (c != '.') digits += c;
  }
  RC_ASSERT(std::stoll(digits) == pico);
  RC_ASSERT(text.size() - text.find('.') == 13u);
}

}  // namespace
}  // namespace deepinfer
