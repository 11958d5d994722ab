// A key names one request for a while, and no more keys are remembered than fit.

#include "server/work_names.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

constexpr WorkNames::Time kBegin{};

TEST(WorkNames, OneKeyIsOneWork) {
  WorkNames names;
  const auto work = names.Claim("a", "k", "/chat", "body", kBegin);
  ASSERT_TRUE(work.has_value());
  EXPECT_EQ(names.Claim("a", "k", "/chat", "body", kBegin), work);
  EXPECT_FALSE(names.Claim("a", "k", "/chat", "other", kBegin).has_value());
  EXPECT_FALSE(names.Claim("a", "k", "/messages", "body", kBegin).has_value());
  EXPECT_NE(names.Claim("b", "k", "/chat", "body", kBegin), work);
  // Parts do not run into each other.
  EXPECT_NE(names.Claim("ak", "", "/chat", "body", kBegin), work);
  WorkNames elsewhere;
  EXPECT_EQ(elsewhere.Claim("a", "k", "/chat", "body", kBegin), work) << "the same everywhere";
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
  const Sha256Digest work = Sha256("work");
  EXPECT_EQ(MakeChoiceOfWork(work, 1).work_id, MakeChoiceOfWork(work, 1).work_id);
  EXPECT_NE(MakeChoiceOfWork(work, 0).work_id, MakeChoiceOfWork(work, 1).work_id);
  EXPECT_NE(MakeChoiceOfWork(work, 0).seed, MakeChoiceOfWork(work, 1).seed);
  EXPECT_NE(MakeChoiceOfWork(work, 0).seed, MakeChoiceOfWork(Sha256("other"), 0).seed);
}

}  // namespace
}  // namespace deepinfer
