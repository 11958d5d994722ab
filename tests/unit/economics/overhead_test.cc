#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "economics/ledger_check.h"
#include "economics/ledger_sum.h"
#include "economics/overhead_account.h"
#include "unit/economics/record_example.h"

namespace deepinfer {
namespace {

OverheadScope ExampleScope() {
  return {.build_commit = "abc",
          .config_hash = "def",
          .model_name = "m",
          .host_id = "host",
          .role = "all",
          .process = std::string(32, '1'),
          .run_id = std::nullopt};
}

ParsedLine Parsed(const OverheadRecord& record) {
  return ParseLedgerLine(FormatOverheadLine(record)).value();
}

ParsedLine RequestOf(int64_t device_ns) {
  LedgerRecord record = testing::ExampleRecord();
  record.resource.prefill_device_ns = device_ns;
  return ParseLedgerLine(FormatLedgerLine(record)).value();
}

TEST(OverheadRecord, LinesAreReadBack) {
  OverheadRecord record;
  record.kind = OverheadKind::kProbe;
  record.scope = ExampleScope();
  record.scope.run_id = "run \"7\"";
  record.device = 3;
  record.from_ns = 5'000;
  record.to_ns = 9'000;
  record.from_utc_us = 1'700'000'000'000'001;
  record.to_utc_us = 1'700'000'000'000'005;
  record.device_ns = 1'234;
  record.requests_ns = 2'766;
  record.is_last = true;
  record.cost_book = "lab";
  record.cost = {.compute = 17, .storage = 0, .network = 0, .operations = 4};
  const OverheadRecord back = Parsed(record).overhead;
  EXPECT_EQ(back.kind, OverheadKind::kProbe);
  EXPECT_EQ(back.scope.run_id, "run \"7\"");
  EXPECT_EQ(back.scope.process, record.scope.process);
  EXPECT_EQ(back.device, 3);
  EXPECT_EQ(back.wall_ns(), 4'000);
  EXPECT_EQ(back.from_utc_us, record.from_utc_us);
  EXPECT_EQ(back.to_utc_us, record.to_utc_us);
  EXPECT_TRUE(back.is_last);
  EXPECT_EQ(back.cost, record.cost);
}

TEST(OverheadRecord, WhatIsMissingIsNamed) {
  OverheadRecord record;
  record.scope = ExampleScope();
  std::string text = FormatOverheadLine(record);
  text.replace(text.find("\"requests_ns\""), 13, "\"renamed\"");
  const Result<ParsedLine> line = ParseLedgerLine(text);
  ASSERT_FALSE(line.ok());
  EXPECT_NE(line.status().message().find("requests_ns"), std::string::npos);
}

// Steps, pauses and cuts in any order: nothing is lost and nothing is counted twice.
RC_GTEST_PROP(OverheadAccountProperty, LinesAddUpToTheTimeOfTheDevice, ()) {
  const auto parts = *rc::gen::container<std::vector<std::vector<int64_t>>>(
      rc::gen::container<std::vector<int64_t>>(5, rc::gen::inRange<int64_t>(0, 1'000'000)));
  OverheadAccount account(ExampleScope(), 0, 2'000, 7);
  LedgerCheck check;
  LedgerSum sum({});
  int64_t wall_ns = 0, charged_ns = 0;
  const auto take = [&](const OverheadRecord& record) {
    wall_ns += record.wall_ns();
    const ParsedLine line = Parsed(record);
    RC_ASSERT(check.Take("1", line).ok());
    sum.Take(line);
  };
  take(account.Startup(500));
  DeviceTime now;
  for (const std::vector<int64_t>& part : parts) {
    // Idle, steps of requests, unclaimed parts of them, probes, and whether to cut here.
    const int64_t steps_ns = part[1] + part[2] + part[3];
    now.accounted_ns += part[0] + steps_ns;
    now.steps_ns += steps_ns;
    now.unclaimed_ns += part[2];
    now.probes_ns += part[3];
    charged_ns += part[1];
    if (part[4] % 2 == 0) continue;
    for (const OverheadRecord& record : account.Cut(now, false)) take(record);
  }
  for (const OverheadRecord& record : account.Cut(now, true)) take(record);
  RC_ASSERT(wall_ns == 1'500 + now.accounted_ns);
  int64_t overhead_ns = 0;
  for (const OverheadTotals& totals : sum.overhead()) overhead_ns += totals.device_ns;
  RC_ASSERT(overhead_ns + charged_ns == wall_ns);
  // The lines of requests must say the same.
  RC_ASSERT(check.Take("2", RequestOf(charged_ns)).ok());
  RC_ASSERT(check.Finish().ok());
}

TEST(LedgerCheckOfOverhead, DeviceTimeOfRequestsMustBeOnTheirLines) {
  OverheadAccount account(ExampleScope(), 0, 100, 0);
  LedgerCheck check;
  ASSERT_TRUE(check.Take("1", Parsed(account.Startup(0))).ok());
  const DeviceTime end{.accounted_ns = 1'000, .steps_ns = 400, .unclaimed_ns = 50, .probes_ns = 0};
  const std::vector<OverheadRecord> cut = account.Cut(end, true);
  ASSERT_EQ(cut.size(), 1u);
  EXPECT_EQ(cut[0].device_ns, 650);
  ASSERT_TRUE(check.Take("2", Parsed(cut[0])).ok());
  ASSERT_TRUE(check.Take("3", RequestOf(349)).ok());
  const Status status = check.Finish();
  EXPECT_NE(status.message().find("349"), std::string::npos) << status.ToString();
  EXPECT_NE(status.message().find("350"), std::string::npos) << status.ToString();
}

// A process that was killed leaves lines whose requests never ended.
TEST(LedgerCheckOfOverhead, NothingIsComparedWhileAProcessGoesOn) {
  OverheadAccount account(ExampleScope(), 0, 100, 0);
  LedgerCheck check;
  ASSERT_TRUE(check.Take("1", Parsed(account.Startup(0))).ok());
  const DeviceTime now{.accounted_ns = 1'000, .steps_ns = 400, .unclaimed_ns = 0, .probes_ns = 0};
  ASSERT_TRUE(check.Take("2", Parsed(account.Cut(now, false)[0])).ok());
  EXPECT_TRUE(check.Finish().ok());
}

TEST(LedgerCheckOfOverhead, LinesMustFollowEachOtherAndFillTheirTime) {
  OverheadAccount account(ExampleScope(), 0, 100, 0);
  const DeviceTime now{.accounted_ns = 1'000, .steps_ns = 400, .unclaimed_ns = 0, .probes_ns = 0};
  OverheadRecord idle = account.Cut(now, false)[0];
  {
    LedgerCheck check;
    OverheadRecord late = idle;
    ASSERT_TRUE(check.Take("1", Parsed(account.Startup(0))).ok());
    late.from_ns += 1;
    late.device_ns -= 1;
    EXPECT_NE(check.Take("2", Parsed(late)).message().find("from"), std::string::npos);
  }
  LedgerCheck check;
  idle.device_ns -= 1;
  EXPECT_FALSE(check.Take("1", Parsed(idle)).ok());
}

TEST(LedgerSumOfOverhead, KindsAreApartAndCostedAgain) {
  const CostBook book =
      CostBook::Parse(R"({"id":"b","currency":"USD","device_hour":{"d":{"price":"3.60",
          "kind":"bare","source":"t"}},"operations_hour":{"staff":"1.80"}})")
          .value();
  LedgerSumOptions options;
  options.recost = &book;
  LedgerSum sum(options);
  OverheadAccount account(ExampleScope(), 0, 1'000'000, 0);
  sum.Take(Parsed(account.Startup(0)));
  const DeviceTime now{
      .accounted_ns = 5'000'000, .steps_ns = 3'000'000, .unclaimed_ns = 0, .probes_ns = 1'000'000};
  for (const OverheadRecord& record : account.Cut(now, true)) sum.Take(Parsed(record));
  const auto& idle = sum.overhead()[static_cast<size_t>(OverheadKind::kIdle)];
  const auto& startup = sum.overhead()[static_cast<size_t>(OverheadKind::kStartup)];
  const auto& probe = sum.overhead()[static_cast<size_t>(OverheadKind::kProbe)];
  EXPECT_EQ(idle.device_ns, 2'000'000);
  EXPECT_EQ(startup.device_ns, 1'000'000);
  EXPECT_EQ(probe.device_ns, 1'000'000);
  // 3.60 an hour are a pico-unit a nanosecond.
  EXPECT_EQ(idle.compute, 2'000'000);
  EXPECT_EQ(idle.operations, 1'000'000);
  EXPECT_EQ(idle.uncosted, 0);
}

}  // namespace
}  // namespace deepinfer
