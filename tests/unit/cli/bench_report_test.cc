#include "cli/bench_report.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

namespace deepinfer {
namespace {

BenchReport Report(std::vector<BenchRow> rows) {
  BenchReport report;
  report.what = "model";
  report.subject = "folder";
  report.environment = {"CPU \"x\"", "avx2 fma", "avx2", "abc", "Release", "plain", "0.5", "0.7"};
  report.rows = std::move(rows);
  return report;
}

TEST(BenchSummary, IsMedianLowestAndHighest) {
  const BenchSummary odd = Summarize({3, 1, 2});
  EXPECT_EQ(odd.median, 2);
  EXPECT_EQ(odd.lowest, 1);
  EXPECT_EQ(odd.highest, 3);
  EXPECT_EQ(odd.spread_percent(), 100);
  EXPECT_EQ(Summarize({1, 2, 4, 9}).median, 3);
  EXPECT_EQ(Summarize({5}).spread_percent(), 0);
}

RC_GTEST_PROP(BenchReport, SurvivesJson, (std::vector<std::vector<int>> samples)) {
  std::vector<BenchRow> rows;
  for (const auto& s : samples) {
    BenchRow row{"row " + std::to_string(rows.size()), "tok/s", {0.5}, {{"bound", 1.5}}};
    for (int x : s) row.samples.push_back(x / 3.0);
    rows.push_back(row);
  }
  const BenchReport report = Report(rows);
  const Result<BenchReport> read = ParseReport(FormatJson(report));
  RC_ASSERT(read.ok());
  RC_ASSERT(read->environment.cpu == report.environment.cpu);
  RC_ASSERT(read->environment.load_after == report.environment.load_after);
  RC_ASSERT(read->rows.size() == rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    RC_ASSERT(read->rows[i].name == rows[i].name);
    RC_ASSERT(read->rows[i].facts.front().value == 1.5);
    RC_ASSERT(read->rows[i].samples.size() == rows[i].samples.size());
    for (size_t j = 0; j < rows[i].samples.size(); ++j) {
      // The library reads numbers to the last bit or two.
      const double want = rows[i].samples[j];
      RC_ASSERT(std::abs(read->rows[i].samples[j] - want) <= 1e-14 * std::abs(want));
    }
  }
}

TEST(BenchReport, OtherTextIsRefused) {
  const std::string good = FormatJson(Report({{"a", "tok/s", {1}, {}}}));
  ASSERT_TRUE(ParseReport(good).ok());
  std::string other_schema = good;
  other_schema.replace(other_schema.find("\"schema\":1"), 10, "\"schema\":9");
  std::string no_samples = good;
  no_samples.replace(no_samples.find("\"samples\":["), 11, "\"samples\":[],\"x\":[");
  for (const std::string& text : {std::string(), std::string("{}"), std::string("[1]"),
                                  good.substr(0, good.size() / 2), other_schema, no_samples}) {
    EXPECT_EQ(ParseReport(text).status().code(), StatusCode::kInvalidRequest) << text;
  }
}

TEST(BenchReport, TableHasAColumnForEveryFact) {
  const std::string table = FormatTable(Report({{"prefill", "tok/s", {10, 20}, {{"bound", 40}}},
                                                {"decode", "tok/s", {3}, {{"MB/token", 7}}}}));
  EXPECT_NE(table.find("bound  MB/token"), std::string::npos) << table;
  EXPECT_NE(table.find("load average 0.5 to 0.7"), std::string::npos) << table;
  EXPECT_NE(table.find("prefill      15"), std::string::npos) << table;
}

TEST(BenchComparison, GivesTheRatioOfMediansAndNamesWhatIsMissing) {
  const BenchReport before = Report({{"a", "tok/s", {2, 4, 3}, {}}, {"old", "tok/s", {1}, {}}});
  const BenchReport after = Report({{"a", "tok/s", {6}, {}}, {"new", "tok/s", {1}, {}}});
  const std::string text = FormatComparison(before, after);
  EXPECT_NE(text.find("2.000"), std::string::npos) << text;
  EXPECT_NE(text.find("66.7"), std::string::npos) << text;
  EXPECT_NE(text.find("only before: old"), std::string::npos) << text;
  EXPECT_NE(text.find("only after: new"), std::string::npos) << text;
}

TEST(BenchEnvironment, NamesTheMachineAndTheKernelLevel) {
  const BenchEnvironment e = ReadEnvironment("avx2");
  EXPECT_EQ(e.isa, "avx2");
  EXPECT_FALSE(e.cpu.empty());
  EXPECT_FALSE(e.commit.empty());
  EXPECT_NE(e.load_before, "?");
}

}  // namespace
}  // namespace deepinfer
