#include "economics/ledger_sum.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "unit/economics/record_example.h"

namespace deepinfer {
namespace {

using testing::ExampleRecord;

ParsedLine Line(const std::string& attempt, const std::string& work, const std::string& key,
                int64_t recv_us, Pico output = 0) {
  LedgerRecord record = ExampleRecord();
  record.ids.attempt_id = attempt;
  record.ids.work_id = work;
  record.ids.key_name = key;
  record.time.recv_utc_us = recv_us;
  record.price_book = "own";
  record.revenue.output = output;
  return ParseLedgerLine(FormatLedgerLine(record)).value();
}

ParsedLine Grade(const std::string& attempt, const std::string& quality) {
  return ParseLedgerLine(
             FormatGradeLine({.attempt_id = attempt, .checker = "c", .quality = quality}))
      .value();
}

LedgerSumOptions ByKey() {
  LedgerSumOptions options;
  options.by = {FindLedgerDimension("key_name").value()};
  return options;
}

TEST(LedgerSum, GroupsAreOrderedAndWhole) {
  LedgerSum sum(ByKey());
  sum.Take(Line("1", "1", "b", 10, 5));
  sum.Take(Line("2", "2", "a", 11, 7));
  sum.Take(Line("3", "3", "b", 12, 11));
  const auto groups = sum.Groups();
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].values, std::vector<std::string>{"a"});
  EXPECT_EQ(groups[0].totals.revenue, 7);
  EXPECT_EQ(groups[1].totals.lines, 2);
  EXPECT_EQ(groups[1].totals.output, 16);
  EXPECT_EQ(groups[1].totals.prompt, 2 * 10240);
}

TEST(LedgerSum, TimesSelectByReception) {
  LedgerSumOptions options;
  options.since_us = 11;
  options.until_us = 12;
  LedgerSum sum(options);
  for (const int64_t at : {10, 11, 12}) sum.Take(Line(std::to_string(at), "w", "k", at, 1));
  EXPECT_EQ(sum.Groups().at(0).totals.lines, 1);
}

TEST(LedgerSum, OnlyTheLastAttemptOfAWorkCanQualify) {
  LedgerSum sum(ByKey());
  sum.Take(Grade("late", "pass"));
  sum.Take(Line("late", "w", "k", 20));
  sum.Take(Line("early", "w", "k", 10));
  sum.Take(Grade("early", "pass"));
  sum.Take(Line("ungraded", "v", "k", 30));
  sum.Take(Line("bad", "u", "k", 30));
  sum.Take(Grade("bad", "pass"));
  sum.Take(Grade("bad", "fail"));
  const LedgerTotals totals = sum.Groups().at(0).totals;
  EXPECT_EQ(totals.lines, 4);
  EXPECT_EQ(totals.works, 3);
  EXPECT_EQ(totals.completed, 3);
  EXPECT_EQ(totals.qualified, 1);
}

TEST(LedgerSum, AnEarlierAttemptThatPassedDoesNotCount) {
  for (const bool late_first : {false, true}) {
    LedgerSum sum(ByKey());
    if (late_first) sum.Take(Line("late", "w", "other key", 20));
    sum.Take(Line("early", "w", "k", 10));
    if (!late_first) sum.Take(Line("late", "w", "other key", 20));
    sum.Take(Grade("early", "pass"));
    sum.Take(Grade("late", "fail"));
    const auto groups = sum.Groups();
    ASSERT_EQ(groups.size(), 2u);
    EXPECT_EQ(groups[0].totals.works, 0);  // "k"
    EXPECT_EQ(groups[1].totals.works, 1);
    EXPECT_EQ(groups[0].totals.qualified + groups[1].totals.qualified, 0);
  }
}

TEST(LedgerSum, RepricingNeedsNoRevenueOnTheLine) {
  const PriceBook book = PriceBook::Load("flat-example").value();
  LedgerSumOptions options;
  options.reprice = &book;
  LedgerSum sum(options);
  sum.Take(ParseLedgerLine(FormatLedgerLine(ExampleRecord())).value());
  const LedgerTotals totals = sum.Groups().at(0).totals;
  EXPECT_EQ(FormatMoney(totals.revenue), "0.001384000000");
  EXPECT_EQ(totals.unpriced, 0);
}

RC_GTEST_PROP(LedgerSum, TheOrderOfLinesDoesNotMatter, (uint32_t seed)) {
  std::vector<ParsedLine> lines;
  std::mt19937_64 random(seed);
  const int count = static_cast<int>(random() % 20);
  PicoSum expected = 0;
  for (int i = 0; i < count; ++i) {
    const auto output = static_cast<Pico>(random() >> 1);
    expected += output;
    lines.push_back(Line("a" + std::to_string(i), "w" + std::to_string(random() % 5),
                         "k" + std::to_string(random() % 3),
                         static_cast<int64_t>(random() % 1'000'000), output));
  }
  const auto text_of = [](const std::vector<ParsedLine>& some) {
    LedgerSum sum(ByKey());
    for (const ParsedLine& line : some) sum.Take(line);
    std::string text;
    for (const LedgerGroup& group : sum.Groups()) {
      text += group.values[0] + " " + FormatMoney(group.totals.revenue) + " " +
              std::to_string(group.totals.completed) + "\n";
    }
    return text;
  };
  const std::string forward = text_of(lines);
  std::shuffle(lines.begin(), lines.end(), random);
  RC_ASSERT(text_of(lines) == forward);
  LedgerSum all{LedgerSumOptions()};
  for (const ParsedLine& line : lines) all.Take(line);
  if (count > 0) RC_ASSERT(all.Groups().at(0).totals.revenue == expected);
}

}  // namespace
}  // namespace deepinfer
