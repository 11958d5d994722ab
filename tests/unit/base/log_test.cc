#include "base/log.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <limits>

#include "base/load_progress.h"

namespace deepinfer {
namespace {

constexpr std::string_view kTime = "2026-01-02T03:04:05.000006Z";

TEST(Log, JsonLineHasTimeLevelEventAndTypedFields) {
  const std::string line = FormatLogLine(LogFormat::kJson, LogLevel::kWarning, "x.y",
                                         {{"i", -3}, {"b", true}, {"d", 0.5}, {"s", "a b"}}, kTime);
  const boost::json::value value = boost::json::parse(line);
  const auto& object = value.as_object();
  EXPECT_EQ(object.at("ts").as_string(), kTime);
  EXPECT_EQ(object.at("level").as_string(), "warning");
  EXPECT_EQ(object.at("event").as_string(), "x.y");
  EXPECT_EQ(object.at("i").as_int64(), -3);
  EXPECT_TRUE(object.at("b").as_bool());
  EXPECT_EQ(object.at("d").as_double(), 0.5);
  EXPECT_EQ(object.at("s").as_string(), "a b");
}

TEST(Log, JsonLineStaysValidForAnyByte) {
  for (int byte = 0; byte < 256; ++byte) {
    std::string text = "a";
    text += static_cast<char>(byte);
    text += "\xe4\xbd\xa0";
    const std::string line =
        FormatLogLine(LogFormat::kJson, LogLevel::kInfo, "e", {{"s", text}}, kTime);
    EXPECT_EQ(line.find('\n'), std::string::npos) << byte;
    boost::json::error_code error;
    const boost::json::value value = boost::json::parse(line, error);
    ASSERT_FALSE(error) << byte << ": " << line;
    const std::string read(value.as_object().at("s").as_string());
    if (byte < 0x80) {
      EXPECT_EQ(read, text) << byte;
    } else {
      EXPECT_EQ(read, "a\xef\xbf\xbd\xe4\xbd\xa0") << byte;
    }
  }
}

TEST(Log, NonFiniteNumbersBecomeNull) {
  const std::string line = FormatLogLine(LogFormat::kJson, LogLevel::kInfo, "e",
                                         {{"d", std::numeric_limits<double>::quiet_NaN()}}, kTime);
  EXPECT_TRUE(boost::json::parse(line).as_object().at("d").is_null());
}

TEST(Log, TextLineQuotesOnlyWhereNeeded) {
  EXPECT_EQ(FormatLogLine(LogFormat::kText, LogLevel::kInfo, "server.ready",
                          {{"port", 8000}, {"model", "a b"}, {"id", "x-1"}, {"nl", "a\nb"}}, kTime),
            "2026-01-02T03:04:05.000006Z info    server.ready port=8000 model=\"a b\" id=x-1 "
            "nl=\"a\\nb\"");
}

TEST(LoadProgress, NamesEveryPhase) {
  EXPECT_EQ(LoadPhaseName(LoadPhase::kStarting), "starting");
  EXPECT_EQ(LoadPhaseName(LoadPhase::kTokenizer), "tokenizer");
  EXPECT_EQ(LoadPhaseName(LoadPhase::kWeights), "weights");
  EXPECT_EQ(LoadPhaseName(LoadPhase::kWarmup), "warmup");
  EXPECT_EQ(LoadPhaseName(LoadPhase::kReady), "ready");
  EXPECT_EQ(LoadPhaseName(LoadPhase::kFailed), "failed");
}

}  // namespace
}  // namespace deepinfer
