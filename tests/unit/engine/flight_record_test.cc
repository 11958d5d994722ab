#include "engine/flight_record.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace deepinfer {
namespace {

class FlightRecordTest : public ::testing::Test {
 protected:
  FlightRecordTest() {
    EngineRequest request;
    request.request_id = "asked";
    request.prompt_ids = {5, 6, 7};
    sequence_ = std::make_unique<Sequence>(std::move(request), TokenSink(), KeyOrigin());
  }

  StepJob Job(int64_t number, bool is_decode) {
    StepJob job;
    job.number = number;
    job.launched_us = 10 * number;
    StepItem& item = job.items.emplace_back();
    item.sequence = sequence_.get();
    item.is_decode = is_decode;
    item.rows.start = 64;
    item.launched_rows = 3;
    (is_decode ? job.rows.decode_rows : job.rows.prefill_rows) = 3;
    job.begin_us = 10 * number;
    job.end_us = job.begin_us + 7;
    return job;
  }

  std::unique_ptr<Sequence> sequence_;
  FlightRecord record_;
};

TEST_F(FlightRecordTest, NamesTheRequestsOfLaunchedStepsUntilTheyAreOver) {
  record_.Launch(Job(4, false));
  record_.Launch(Job(5, true));
  EXPECT_EQ(record_.DescribeLaunched(),
            "step 4 launched at 40 us, prompt of asked from 64: 3 rows; "
            "step 5 launched at 50 us, answer of asked from 64: 3 rows");
  record_.Add(Job(4, false));
  EXPECT_EQ(record_.DescribeLaunched(),
            "step 5 launched at 50 us, answer of asked from 64: 3 rows");
  record_.Add(Job(5, true));
  EXPECT_EQ(record_.DescribeLaunched(), "");
}

TEST_F(FlightRecordTest, KeepsTheLastThousandStepsInTextsOfSomeSteps) {
  for (int64_t number = 0; number < 1007; ++number) {
    const StepJob job = Job(number, true);
    record_.Launch(job);
    record_.Add(job);
  }
  const std::vector<std::string> texts = record_.DescribeLast(300);
  ASSERT_EQ(texts.size(), 4u);
  EXPECT_EQ(texts.front().find("step 7 at 70 us: 1 requests, 0 prompt and 3 answer rows, "
                               "predicted 0 us, took 7 us; step 8 "),
            0u);
  const std::string last =
      "; step 1006 at 10060 us: 1 requests, 0 prompt and 3 answer rows, "
      "predicted 0 us, took 7 us";
  ASSERT_GT(texts.back().size(), last.size());
  EXPECT_EQ(texts.back().substr(texts.back().size() - last.size()), last);
  size_t num_steps = 0;
  for (const std::string& text : texts) {
    for (size_t at = text.find("step "); at != std::string::npos; at = text.find("step ", at + 1)) {
      ++num_steps;
    }
  }
  EXPECT_EQ(num_steps, FlightRecord::kSteps);
}

TEST_F(FlightRecordTest, WithoutStepsThereIsNothingToTell) {
  EXPECT_TRUE(record_.DescribeLast(50).empty());
  EXPECT_EQ(record_.DescribeLaunched(), "");
}

}  // namespace
}  // namespace deepinfer
