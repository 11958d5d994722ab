// Grammars that begin in the middle of an output.
#include <gtest/gtest.h>

#include "text/grammar.h"
#include "unit/text/grammar_test_util.h"

namespace deepinfer {
namespace {

using testing::DemoMatcher;
using testing::DemoTokenizer;
using testing::EosOf;
using testing::IsLegal;
using testing::MaskOf;

std::vector<int32_t> Ids(std::string_view text) {
  std::vector<int32_t> ids;
  DemoTokenizer().EncodeWithSpecials(text, &ids);
  return ids;
}

const GrammarSource kAnswer{.kind = GrammarKind::kChoice, .text = R"(["ok"])"};

GrammarTrigger BehindReasoning() {
  GrammarTrigger trigger;
  trigger.token_ids = {SpecialTokens::Resolve(DemoTokenizer())->think_end};
  return trigger;
}

TEST(GrammarTrigger, TheOutputIsFreeUntilTheTrigger) {
  GrammarMatcher matcher = DemoMatcher(kAnswer, BehindReasoning());
  ASSERT_TRUE(matcher.AcceptAll(Ids("any text at all { <tag> \n")).ok());
  EXPECT_FALSE(matcher.InGrammar());
  ASSERT_TRUE(matcher.AcceptAll(Ids("</think>")).ok());
  EXPECT_TRUE(matcher.InGrammar());
  EXPECT_FALSE(matcher.Accept(Ids("x")[0]).ok());
  ASSERT_TRUE(matcher.AcceptAll(Ids("ok")).ok());
  ASSERT_TRUE(matcher.Accept(EosOf(DemoTokenizer())).ok());
  EXPECT_TRUE(matcher.IsTerminated());
}

TEST(GrammarTrigger, TheOutputCannotEndBeforeAnObligatoryTrigger) {
  const int32_t eos = EosOf(DemoTokenizer());
  GrammarTrigger trigger = BehindReasoning();
  GrammarMatcher obligatory = DemoMatcher(kAnswer, trigger);
  EXPECT_FALSE(IsLegal(MaskOf(&obligatory, DemoTokenizer()), eos));
  EXPECT_FALSE(obligatory.Accept(eos).ok());
  EXPECT_FALSE(obligatory.IsComplete());
  trigger.optional = true;
  GrammarMatcher optional = DemoMatcher(kAnswer, trigger);
  std::vector<uint32_t> mask(GrammarMaskWords(DemoTokenizer().vocab_size()));
  const auto restricts = optional.FillMask(mask);
  ASSERT_TRUE(restricts.ok());
  EXPECT_FALSE(*restricts);
  EXPECT_TRUE(optional.IsComplete());
  ASSERT_TRUE(optional.Accept(eos).ok());
  EXPECT_TRUE(optional.IsTerminated());
  EXPECT_FALSE(optional.Accept(eos).ok());
  ASSERT_TRUE(optional.Rollback(1).ok());
  EXPECT_FALSE(optional.IsTerminated());
}

TEST(GrammarTrigger, BannedTokensAreIllegalBeforeItOnly) {
  GrammarTrigger trigger = BehindReasoning();
  trigger.banned_ids = Ids("o");
  GrammarMatcher matcher =
      DemoMatcher({.kind = GrammarKind::kRegex, .text = "o+"}, std::move(trigger));
  EXPECT_FALSE(IsLegal(MaskOf(&matcher, DemoTokenizer()), Ids("o")[0]));
  EXPECT_FALSE(matcher.Accept(Ids("o")[0]).ok());
  ASSERT_TRUE(matcher.AcceptAll(Ids("</think>")).ok());
  EXPECT_TRUE(matcher.Accept(Ids("o")[0]).ok());
}

TEST(GrammarTrigger, SeveralTokensCountInSequence) {
  GrammarTrigger trigger;
  trigger.token_ids = {Ids("a")[0], Ids("a")[0], Ids("b")[0]};
  GrammarMatcher matcher = DemoMatcher(kAnswer, trigger);
  const auto take = [&](const char* letter) { ASSERT_TRUE(matcher.Accept(Ids(letter)[0]).ok()); };
  take("a");
  take("b");
  EXPECT_FALSE(matcher.InGrammar());
  take("a");
  take("a");
  take("a");
  EXPECT_FALSE(matcher.InGrammar());
  take("b");
  EXPECT_TRUE(matcher.InGrammar());
}

TEST(GrammarTrigger, RollbackCrossesTheTriggerInBothDirections) {
  GrammarMatcher matcher = DemoMatcher(kAnswer, BehindReasoning());
  const auto free_mask = MaskOf(&matcher, DemoTokenizer());
  ASSERT_TRUE(matcher.AcceptAll(Ids("hm</think>ok")).ok());
  ASSERT_TRUE(matcher.Accept(EosOf(DemoTokenizer())).ok());
  const int64_t num_accepted = matcher.num_accepted();
  for (int64_t forgotten = 1; forgotten <= num_accepted; ++forgotten) {
    GrammarMatcher clone = matcher.Clone();
    ASSERT_TRUE(clone.Rollback(forgotten).ok());
    EXPECT_EQ(clone.num_accepted(), num_accepted - forgotten);
    std::vector<int32_t> rest = Ids("hm</think>ok");
    rest.push_back(EosOf(DemoTokenizer()));
    rest.erase(rest.begin(), rest.end() - forgotten);
    EXPECT_TRUE(clone.AcceptAll(rest).ok()) << forgotten;
    EXPECT_TRUE(clone.IsTerminated());
  }
  ASSERT_TRUE(matcher.Rollback(num_accepted).ok());
  EXPECT_FALSE(matcher.InGrammar());
  EXPECT_EQ(MaskOf(&matcher, DemoTokenizer()), free_mask);
}

TEST(GrammarTrigger, PrecedingTextMayComeFromSeveralTokens) {
  const int32_t marker = SpecialTokens::Resolve(DemoTokenizer())->dsml;
  GrammarTrigger trigger;
  trigger.token_ids = {marker};
  trigger.preceding_text = "\n\n<";
  trigger.optional = true;
  for (const char* text : {"x\n\n<", "\n\n<", "a\n\n\n<"}) {
    GrammarMatcher matcher = DemoMatcher(kAnswer, trigger);
    EXPECT_FALSE(matcher.Accept(marker).ok());
    for (const char c : std::string_view(text)) {
      ASSERT_TRUE(matcher.Accept(Ids(std::string(1, c))[0]).ok());
    }
    EXPECT_TRUE(IsLegal(MaskOf(&matcher, DemoTokenizer()), marker)) << text;
    EXPECT_TRUE(matcher.Accept(marker).ok()) << text;
    EXPECT_TRUE(matcher.InGrammar());
  }
  for (const char* text : {"\n<", "<", "\n\n< ", "\n\n"}) {
    GrammarMatcher matcher = DemoMatcher(kAnswer, trigger);
    ASSERT_TRUE(matcher.AcceptAll(Ids(text)).ok());
    EXPECT_FALSE(IsLegal(MaskOf(&matcher, DemoTokenizer()), marker)) << text;
    EXPECT_FALSE(matcher.Accept(marker).ok()) << text;
  }
}

TEST(GrammarTrigger, TheBoundTokenForcesTheRestOfTheTrigger) {
  GrammarTrigger trigger;
  trigger.token_ids = {Ids("<")[0], Ids("a")[0], Ids("b")[0]};
  trigger.bound_token = trigger.token_ids[0];
  GrammarMatcher matcher = DemoMatcher(kAnswer, trigger);
  ASSERT_TRUE(matcher.AcceptAll(Ids("free ")).ok());
  ASSERT_TRUE(matcher.Accept(trigger.token_ids[0]).ok());
  std::vector<uint32_t> mask(GrammarMaskWords(DemoTokenizer().vocab_size()));
  for (const size_t place : {1U, 2U}) {
    const auto forced = matcher.FindForcedToken(mask);
    ASSERT_TRUE(forced.ok());
    ASSERT_EQ(*forced, std::optional(trigger.token_ids[place]));
    EXPECT_FALSE(matcher.Accept(trigger.token_ids[0]).ok());
    ASSERT_TRUE(matcher.Accept(**forced).ok());
  }
  EXPECT_TRUE(matcher.InGrammar());
}

TEST(GrammarTrigger, ABoundTokenOutsideTheTriggerForcesAllOfIt) {
  GrammarTrigger trigger;
  trigger.token_ids = {Ids("a")[0], Ids("b")[0]};
  trigger.bound_token = Ids("!")[0];
  GrammarMatcher matcher = DemoMatcher(kAnswer, trigger);
  ASSERT_TRUE(matcher.Accept(Ids("a")[0]).ok());
  ASSERT_TRUE(matcher.Accept(*trigger.bound_token).ok());
  std::vector<uint32_t> mask(GrammarMaskWords(DemoTokenizer().vocab_size()));
  for (const int32_t id : trigger.token_ids) {
    const auto forced = matcher.FindForcedToken(mask);
    ASSERT_TRUE(forced.ok());
    ASSERT_EQ(*forced, std::optional(id));
    ASSERT_TRUE(matcher.Accept(id).ok());
  }
  EXPECT_TRUE(matcher.InGrammar());
}

}  // namespace
}  // namespace deepinfer
