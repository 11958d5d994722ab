#include "economics/ledger_line.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <functional>
#include <string>
#include <vector>

#include "economics/ledger_check.h"
#include "unit/economics/record_example.h"

namespace deepinfer {
namespace {

namespace json = boost::json;
using testing::ExampleRecord;

LedgerRecord Priced() {
  LedgerRecord record = ExampleRecord();
  PriceRecord(PriceBook::Load(std::string(kDefaultPriceBook)).value(), &record);
  return record;
}

Status Check(const LedgerRecord& record) {
  const Result<ParsedLine> line = ParseLedgerLine(FormatLedgerLine(record));
  if (!line.ok()) return line.status();
  return LedgerCheck().Take("file:1", *line);
}

TEST(LedgerLine, ReadsBackWhatWasWritten) {
  const LedgerRecord record = Priced();
  const ParsedLine parsed = ParseLedgerLine(FormatLedgerLine(record)).value();
  const LedgerLine& line = parsed.ledger;
  EXPECT_EQ(line.work_id, "work-1");
  EXPECT_EQ(line.tokens.cached, 9856);
  EXPECT_EQ(line.tokens.cached_by_tier[0], 9856);
  EXPECT_EQ(line.time.recv_utc_us, record.time.recv_utc_us);
  EXPECT_EQ(line.time.last_token, record.time.last_token);
  EXPECT_EQ(line.revenue, record.revenue);
  EXPECT_EQ(line.price_window, "peak");
  EXPECT_EQ(line.ttft_ms, "3.500");
  EXPECT_EQ(line.e2e_ms, "12.000");
  EXPECT_EQ(line.outcome.finish_reason, "stop");
  EXPECT_FALSE(line.qualified);
  const json::value value = json::parse(FormatLedgerLine(record));
  EXPECT_EQ(value.at("stream").at("itl_ms").at("max"), "4.567");
  EXPECT_EQ(value.at("stream").at("e2e_ms_per_output_token"), "0.024");
  EXPECT_EQ(value.at("money").at("revenue").at("miss"), 115'200'000);
  EXPECT_TRUE(value.at("money").at("cost").is_null());
  EXPECT_EQ(value.at("outcome").at("why_not"), (json::array{"quality"}));
}

TEST(LedgerLine, ClientTextOfAnyBytesStaysOneValidLine) {
  LedgerRecord record = ExampleRecord();
  record.ids.session_label = "a\nb\"\\\xff\x01";
  const std::string text = FormatLedgerLine(record);
  EXPECT_EQ(text.find('\n'), std::string::npos);
  EXPECT_TRUE(ParseLedgerLine(text).ok());
}

TEST(LedgerLine, SaysWhyWorkIsNotQualified) {
  LedgerRecord record = ExampleRecord();
  record.outcome.http_status = 499;
  record.outcome.cancelled_by = "client";
  record.outcome.finish_reason = "length";
  const json::value value = json::parse(FormatLedgerLine(record));
  EXPECT_EQ(value.at("outcome").at("why_not"),
            (json::array{"status", "quality", "cancelled", "truncated"}));
}

void ForEachField(
    json::object& object, const std::string& path,
    const std::function<void(json::object&, const std::string&, const std::string&)>& visit) {
  std::vector<std::string> keys;
  for (const auto& member : object) keys.emplace_back(member.key());
  for (const std::string& key : keys) {
    const std::string full = path.empty() ? key : path + "." + key;
    if (object.at(key).is_object()) ForEachField(object.at(key).get_object(), full, visit);
    visit(object, key, full);
  }
}

TEST(LedgerLine, ALineWithoutAnyOneFieldIsRefusedByName) {
  json::value value = json::parse(FormatLedgerLine(Priced()));
  int num_fields = 0;
  ForEachField(value.get_object(), "",
               [&](json::object& object, const std::string& key, const std::string& full) {
                 const json::value kept = object.at(key);
                 object.erase(key);
                 const auto parsed = ParseLedgerLine(json::serialize(value));
                 EXPECT_FALSE(parsed.ok()) << full;
                 EXPECT_NE(parsed.status().message().find(full), std::string::npos)
                     << parsed.status().message() << " for " << full;
                 object[key] = kept;
                 ++num_fields;
               });
  EXPECT_GT(num_fields, 90);
}

TEST(LedgerLine, AWrongTypeIsRefused) {
  json::value value = json::parse(FormatLedgerLine(Priced()));
  value.at("tokens").as_object()["prompt"] = 1.5;
  EXPECT_FALSE(ParseLedgerLine(json::serialize(value)).ok());
  for (const char* bad : {"", "[]", "{}", R"({"schema":"other"})", "{\"schema\":"}) {
    EXPECT_FALSE(ParseLedgerLine(bad).ok()) << bad;
  }
}

TEST(LedgerLine, DimensionsAreFoundByPathAndByLastPart) {
  const size_t by_path = FindLedgerDimension("ids.key_name").value();
  EXPECT_EQ(FindLedgerDimension("key_name").value(), by_path);
  const Result<size_t> unknown = FindLedgerDimension("colour");
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.status().message().find("key_name"), std::string::npos);
}

TEST(LedgerCheck, AcceptsTheExample) {
  EXPECT_TRUE(Check(Priced()).ok()) << Check(Priced()).ToString();
  EXPECT_TRUE(Check(ExampleRecord()).ok());
}

TEST(LedgerCheck, FindsEveryBrokenInvariant) {
  const std::pair<const char*, std::function<void(LedgerRecord&)>> faults[] = {
      {"cached + computed", [](LedgerRecord& r) { ++r.tokens.prompt; }},
      {"cached_by_tier", [](LedgerRecord& r) { ++r.tokens.cached_by_tier[3]; }},
      {"replayed", [](LedgerRecord& r) { r.tokens.replayed = 385; }},
      {"cache_written", [](LedgerRecord& r) { r.tokens.cache_written = 385; }},
      {"reasoning + content", [](LedgerRecord& r) { ++r.tokens.tool; }},
      {"drafted", [](LedgerRecord& r) { r.tokens.draft_accepted = 1; }},
      {"draft_accepted exceeds generated",
       [](LedgerRecord& r) { r.tokens.drafted = r.tokens.draft_accepted = 501; }},
      {"negative", [](LedgerRecord& r) { r.tokens.wasted = -1; }},
      {"first_token", [](LedgerRecord& r) { r.time.first_token = 1; }},
      {"closed", [](LedgerRecord& r) { r.time.closed = 2; }},
      {"kv_load_end",
       [](LedgerRecord& r) {
         r.time.kv_load_start = *r.time.prefill_start;
         r.time.kv_load_end = *r.time.admitted;
       }},
      {"transfer_end",
       [](LedgerRecord& r) {
         r.time.transfer_start = *r.time.prefill_end;
         r.time.transfer_end = *r.time.prefill_start;
       }},
      {"device_ns.decode is negative", [](LedgerRecord& r) { r.resource.decode_device_ns = -1; }},
      {"revenue", [](LedgerRecord& r) { ++r.revenue.output; }},
      {"price_window", [](LedgerRecord& r) { r.price_window = PriceWindow::kOffPeak; }},
      {"revenue", [](LedgerRecord& r) { r.outcome.http_status = 500; }},
  };
  for (const auto& [message, fault] : faults) {
    LedgerRecord record = Priced();
    fault(record);
    const Status status = Check(record);
    EXPECT_EQ(status.code(), StatusCode::kDataCorruption) << message;
    EXPECT_NE(status.message().find(message), std::string::npos) << status.ToString();
  }
}

TEST(LedgerCheck, AnAttemptHasOneLine) {
  LedgerCheck check;
  const ParsedLine line = ParseLedgerLine(FormatLedgerLine(Priced())).value();
  EXPECT_TRUE(check.Take("a:1", line).ok());
  const Status again = check.Take("a:2", line);
  EXPECT_NE(again.message().find("a:1"), std::string::npos) << again.ToString();
}

TEST(LedgerCheck, AWorkIdIsQualifiedOnce) {
  LedgerCheck check;
  ParsedLine line = ParseLedgerLine(FormatLedgerLine(Priced())).value();
  line.ledger.qualified = true;
  line.ledger.quality = "pass";
  line.ledger.why_not.clear();
  EXPECT_TRUE(check.Take("a:1", line).ok());
  line.ledger.attempt_id = "other";
  EXPECT_NE(check.Take("a:2", line).message().find("a:1"), std::string::npos);
}

TEST(LedgerCheck, AnOutcomeMustFitItsReasons) {
  const ParsedLine good = ParseLedgerLine(FormatLedgerLine(Priced())).value();
  const auto check = [&](const auto& fault) {
    ParsedLine line = good;
    fault(line.ledger);
    return LedgerCheck().Take("a:1", line);
  };
  EXPECT_FALSE(check([](LedgerLine& line) { line.why_not.clear(); }).ok());
  EXPECT_FALSE(check([](LedgerLine& line) { line.qualified = true; }).ok());
  const auto qualified = [&](const auto& fault) {
    return check([&](LedgerLine& line) {
      line.qualified = true;
      line.quality = "pass";
      line.why_not.clear();
      fault(line);
    });
  };
  EXPECT_TRUE(qualified([](LedgerLine&) {}).ok());
  EXPECT_FALSE(qualified([](LedgerLine& line) { line.quality = "fail"; }).ok());
  EXPECT_FALSE(qualified([](LedgerLine& line) { line.slo_met = false; }).ok());
  EXPECT_FALSE(qualified([](LedgerLine& line) { line.outcome.cancelled_by = "client"; }).ok());
}

TEST(Revenue, OnlyWhatTheClientGotIsEarned) {
  const auto earns = [](int64_t status, const char* cancelled_by, bool failed, int64_t chunks) {
    LedgerOutcome outcome;
    outcome.http_status = status;
    outcome.cancelled_by = cancelled_by;
    if (failed) outcome.error_code = "x";
    return EarnsRevenue(outcome, chunks);
  };
  EXPECT_TRUE(earns(200, "none", false, 1));
  EXPECT_FALSE(earns(500, "none", true, 0));
  EXPECT_FALSE(earns(200, "none", true, 5));
  EXPECT_TRUE(earns(499, "client", false, 5));
  EXPECT_FALSE(earns(499, "client", false, 0));
  EXPECT_FALSE(earns(200, "server", true, 3));
}

}  // namespace
}  // namespace deepinfer
