#include "server/prefix_log.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

constexpr Sha256Digest kOurs{1};
constexpr Sha256Digest kTheirs{2};

TEST(PrefixLog, NamesTheEarlierPromptThatSharesMost) {
  PrefixLog log;
  log.Begin("a", kOurs, {1, 2, 3, 4});
  log.Begin("theirs", kTheirs, {1, 2, 3, 5, 6});
  log.Begin("b", kOurs, {1, 9});
  log.Begin("c", kOurs, {1, 2, 3, 5, 6});
  log.Begin("later", kOurs, {1, 2, 3, 5, 6});
  const auto report = log.Report("c");
  ASSERT_TRUE(report);
  EXPECT_EQ(report->nearest_request_id, "a");
  EXPECT_EQ(report->num_common, 3);
  EXPECT_EQ(report->nearest_ids, (std::vector<int32_t>{1, 2, 3, 4}));
  EXPECT_EQ(report->cached_tokens, -1);
  EXPECT_EQ(log.Report("a")->nearest_request_id, "");
  EXPECT_EQ(log.Report("theirs")->nearest_request_id, "");
  EXPECT_FALSE(log.Report("unknown"));
}

TEST(PrefixLog, KnowsWhatTheCacheHadOfTheNewestOfAnId) {
  PrefixLog log;
  log.Begin("a", kOurs, {1});
  log.Begin("a", kOurs, {1, 2});
  log.End("a", 1, 1);
  log.End("gone", 5, 5);
  EXPECT_EQ(log.Report("a")->cached_tokens, 1);
  EXPECT_EQ(log.Report("a")->prompt_ids.size(), 2u);
}

TEST(PrefixLog, IsBoundedInRequestsAndTokens) {
  PrefixLog log;
  for (int i = 0; i < 1000; ++i) log.Begin(std::to_string(i), kOurs, {i});
  EXPECT_FALSE(log.Report("700"));
  EXPECT_TRUE(log.Report("999"));
  log.Begin("large", kOurs, std::vector<int32_t>(4 << 20));
  EXPECT_FALSE(log.Report("999"));
  EXPECT_TRUE(log.Report("large"));
}

}  // namespace
}  // namespace deepinfer
