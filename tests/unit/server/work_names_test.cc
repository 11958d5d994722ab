// A key names one request for a while, and no more keys are remembered than fit.

#include "server/work_names.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

namespace deepinfer {
namespace {

constexpr WorkNames::Time kBegin{};

TEST(WorkNames, OneKeyIsOneWork) {
  WorkNames names;
  const auto work = names.Claim("a", "k", "/chat", "body", kBegin);
  ASSERT_TRUE(work.has_value());
  EXPECT_TRUE(work->is_new);
  const auto again = names.Claim("a", "k", "/chat", "body", kBegin);
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->work, work->work);
  EXPECT_FALSE(again->is_new);
  EXPECT_FALSE(names.Claim("a", "k", "/chat", "other", kBegin).has_value());
  EXPECT_FALSE(names.Claim("a", "k", "/messages", "body", kBegin).has_value());
  EXPECT_NE(names.Claim("b", "k", "/chat", "body", kBegin)->work, work->work);
  // Parts do not run into each other.
  EXPECT_NE(names.Claim("ak", "", "/chat", "body", kBegin)->work, work->work);
  EXPECT_EQ(WorkNames::WorkOf("a", "k", "/chat", "body"), work->work) << "the same everywhere";
}

TEST(WorkNames, AKeyThatWasReleasedIsFree) {
  WorkNames names;
  const auto work = names.Claim("a", "k", "/chat", "body", kBegin);
  ASSERT_TRUE(work.has_value());
  names.Release("a", "k", WorkNames::WorkOf("a", "k", "/chat", "other"));
  EXPECT_FALSE(names.Claim("a", "k", "/chat", "other", kBegin)) << "it never stood for that";
  names.Release("a", "k", work->work);
  EXPECT_EQ(names.size(), 0u);
  EXPECT_TRUE(names.Claim("a", "k", "/chat", "other", kBegin));
}

TEST(WorkNames, AKeyIsForgottenSomeTimeAfterItsLastUse) {
  WorkNames names;
  const auto later = [](std::chrono::seconds s) { return kBegin + s; };
  ASSERT_TRUE(names.Claim("a", "k", "/chat", "body", kBegin));
  ASSERT_TRUE(names.Claim("a", "k", "/chat", "body", later(WorkNames::kMemory / 2)));
  EXPECT_FALSE(names.Claim("a", "k", "/chat", "other", later(WorkNames::kMemory * 5 / 4)));
  EXPECT_TRUE(names.Claim("a", "k", "/chat", "other", later(WorkNames::kMemory * 2)));
}

TEST(WorkNames, MemoryIsBounded) {
  WorkNames names;
  for (size_t i = 0; i < WorkNames::kMost + 100; ++i) {
    ASSERT_TRUE(names.Claim("a", std::to_string(i), "/chat", "body", kBegin));
  }
  EXPECT_LE(names.size(), WorkNames::kMost);
  EXPECT_TRUE(names.Claim("a", "0", "/chat", "other", kBegin)) << "the oldest went";
}

TEST(WorkNames, ChoicesHaveNamesAndSeedsOfTheirOwn) {
  const std::vector<int32_t> prompt = {1, 2}, other = {1, 3};
  const auto make = [&](std::string_view work, size_t choice, const std::vector<int32_t>& ids) {
    return MakeChoiceOfWork(Sha256(work), choice, ids);
  };
  const ChoiceOfWork first = make("work", 0, prompt);
  EXPECT_EQ(make("work", 0, prompt).work_id, first.work_id);
  EXPECT_NE(make("work", 1, prompt).work_id, first.work_id);
  EXPECT_NE(make("work", 0, other).work_id, first.work_id) << "not an answer to this prompt";
  EXPECT_NE(make("work", 1, prompt).seed, first.seed);
  EXPECT_NE(make("other", 0, prompt).seed, first.seed);
}

}  // namespace
}  // namespace deepinfer
