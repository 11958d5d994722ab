#include "text/special_tokens.h"

#include <gtest/gtest.h>

#include "unit/text/text_test_data.h"

namespace deepinfer {
namespace {

TEST(SpecialTokens, ReleasedIds) {
  const Result<SpecialTokens> tokens = SpecialTokens::Resolve(testing::ReleasedTokenizer());
  ASSERT_TRUE(tokens.ok()) << tokens.status().ToString();
  EXPECT_EQ(tokens->bos, 0);
  EXPECT_EQ(tokens->eos, 1);
  EXPECT_EQ(tokens->pad, 2);
  EXPECT_EQ(tokens->system, 128799);
  EXPECT_EQ(tokens->user, 128803);
  EXPECT_EQ(tokens->assistant, 128804);
  EXPECT_EQ(tokens->think_begin, 128821);
  EXPECT_EQ(tokens->think_end, 128822);
  EXPECT_EQ(tokens->dsml, 128825);
  EXPECT_EQ(tokens->latest_reminder, 128828);
  EXPECT_EQ(tokens->image, 129264);
  EXPECT_EQ(tokens->fim_hole, 128800);
  EXPECT_EQ(tokens->fim_begin, 128801);
  EXPECT_EQ(tokens->fim_end, 128802);
  EXPECT_EQ(tokens->action, 128829);
  EXPECT_EQ(tokens->query, 128830);
  EXPECT_EQ(tokens->authority, 128831);
  EXPECT_EQ(tokens->domain, 128832);
  EXPECT_EQ(tokens->title, 128836);
  EXPECT_EQ(tokens->read_url, 128845);
}

TEST(SpecialTokens, IdsFollowTheVocabulary) {
  const Tokenizer& demo = testing::DemoTokenizer();
  const Result<SpecialTokens> tokens = SpecialTokens::Resolve(demo);
  ASSERT_TRUE(tokens.ok()) << tokens.status().ToString();
  EXPECT_EQ(tokens->user, 8193);
  EXPECT_EQ(tokens->assistant, 8194);
  EXPECT_EQ(tokens->image, 8205);
  EXPECT_EQ(demo.TokenBytes(tokens->think_end), "</think>");
}

TEST(SpecialTokens, VocabularyWithoutAChatTokenIsRefusedByName) {
  const Result<SpecialTokens> tokens = SpecialTokens::Resolve(testing::TinyTokenizer());
  ASSERT_FALSE(tokens.ok());
  EXPECT_EQ(tokens.status().code(), StatusCode::kNotFound);
  EXPECT_NE(tokens.status().message().find("<｜System｜>"), std::string::npos)
      << tokens.status().message();
}

}  // namespace
}  // namespace deepinfer
