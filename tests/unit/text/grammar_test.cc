// What each kind of grammar allows, and the properties of matchers.
#include "text/grammar.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "unit/text/grammar_test_util.h"

namespace deepinfer {
namespace {

using testing::DemoMatcher;
using testing::DemoMatches;
using testing::DemoTokenizer;
using testing::EosOf;
using testing::IsLegal;
using testing::MaskOf;

constexpr const char* kPersonSchema = R"({"type": "object", "additionalProperties": false,
  "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"},
                 "tags": {"type": "array", "items": {"enum": ["a", "b"]}}},
  "required": ["name", "age"]})";

GrammarSource Schema(std::string text) {
  return {.kind = GrammarKind::kJsonSchema, .text = std::move(text)};
}

TEST(Grammar, JsonObjectAllowsAnyObjectAndNothingElse) {
  const GrammarSource source{.kind = GrammarKind::kJsonObject};
  EXPECT_TRUE(DemoMatches(source, R"({"a": [1, {"b": null}], "ä": "\n"})"));
  EXPECT_TRUE(DemoMatches(source, "{}"));
  EXPECT_FALSE(DemoMatches(source, "[1]"));
  EXPECT_FALSE(DemoMatches(source, R"({"a": 1} x)"));
  EXPECT_FALSE(DemoMatches(source, R"({"a": )"));
}

TEST(Grammar, SchemaClosesObjectsAndKeepsTheOrderOfProperties) {
  EXPECT_TRUE(
      DemoMatches(Schema(kPersonSchema), R"({"name": "Bo", "age": 7, "tags": ["a", "b"]})"));
  EXPECT_TRUE(DemoMatches(Schema(kPersonSchema), R"({"name":"Bo","age":-7})"));
  EXPECT_FALSE(DemoMatches(Schema(kPersonSchema), R"({"name": "Bo"})"));
  EXPECT_FALSE(DemoMatches(Schema(kPersonSchema), R"({"name": "Bo", "age": 7, "x": 1})"));
  EXPECT_FALSE(DemoMatches(Schema(kPersonSchema), R"({"name": "Bo", "age": 7.5})"));
}

TEST(Grammar, LimitedStringsHoldNoControlCharacters) {
  EXPECT_FALSE(DemoMatches(Schema(kPersonSchema), "{\"name\": \"B\to\", \"age\": 7}"));
  EXPECT_TRUE(DemoMatches(Schema(kPersonSchema), "{\"name\": \"B o\", \"age\": 7}"));
}

TEST(Grammar, BareContainersHoldAnything) {
  EXPECT_TRUE(DemoMatches(Schema(R"({"type": "array"})"), R"([1, "x", {"y": []}])"));
  EXPECT_TRUE(DemoMatches(Schema(R"({"type": "object", "properties": {"o": {"type": "object"}},
                                     "required": ["o"]})"),
                          R"({"o": {"free": [true]}})"));
}

TEST(Grammar, NumbersAndWhiteSpaceAreBounded) {
  const GrammarSource source = Schema(R"({"type": "array", "items": {"type": "number"}})");
  EXPECT_TRUE(DemoMatches(source, "[" + std::string(31, '7') + ".25e-300]"));
  EXPECT_FALSE(DemoMatches(source, "[" + std::string(32, '7') + "]"));
  EXPECT_FALSE(DemoMatches(source, "[0." + std::string(25, '3') + "]"));
  EXPECT_FALSE(DemoMatches(source, "[1e1000]"));
  EXPECT_TRUE(DemoMatches(source, "[" + std::string(16, ' ') + "1]"));
  EXPECT_FALSE(DemoMatches(source, "[" + std::string(17, ' ') + "1]"));
  EXPECT_FALSE(DemoMatches(Schema(R"({"type": "integer"})"), std::string(33, '7')));
}

TEST(Grammar, RegexMatchesTheWholeOutput) {
  const GrammarSource source{.kind = GrammarKind::kRegex, .text = "[a-c]+-\\d{2}"};
  EXPECT_TRUE(DemoMatches(source, "abc-42"));
  EXPECT_FALSE(DemoMatches(source, "abc-421"));
  EXPECT_FALSE(DemoMatches(source, "xabc-42"));
}

TEST(Grammar, EbnfStartsAtRoot) {
  const GrammarSource source{.kind = GrammarKind::kEbnf,
                             .text = "root ::= \"(\" (root | [0-9]) \")\""};
  EXPECT_TRUE(DemoMatches(source, "(((7)))"));
  EXPECT_FALSE(DemoMatches(source, "((7)"));
}

TEST(Grammar, ChoiceAllowsItsStringsLiterally) {
  const GrammarSource source{.kind = GrammarKind::kChoice,
                             .text = R"(["yes", "no \"maybe\"\n", "größe 😀", "\\d+"])"};
  for (const char* text : {"yes", "no \"maybe\"\n", "größe 😀", "\\d+"}) {
    EXPECT_TRUE(DemoMatches(source, text)) << text;
  }
  EXPECT_FALSE(DemoMatches(source, "y"));
  EXPECT_FALSE(DemoMatches(source, "42"));
}

// The library's own notation of these letters swallows hexadecimal digits behind them.
TEST(Grammar, LettersBeforeHexadecimalDigitsStayThemselves) {
  EXPECT_TRUE(DemoMatches(Schema(R"({"type": "object", "properties": {"größe": {"const": "ßf0"}},
                                     "required": ["größe"]})"),
                          R"({"größe": "ßf0"})"));
  EXPECT_TRUE(DemoMatches({.kind = GrammarKind::kRegex, .text = "gr(ö|o)ße{2}"}, "größee"));
  EXPECT_TRUE(DemoMatches({.kind = GrammarKind::kEbnf, .text = "root ::= \"äb\" [é-ë]\n"}, "äbê"));
}

TEST(Grammar, NeverAllowsAddedTokens) {
  GrammarMatcher matcher = DemoMatcher({.kind = GrammarKind::kEbnf, .text = "root ::= [^]*"});
  const auto mask = MaskOf(&matcher, DemoTokenizer());
  const int32_t eos = EosOf(DemoTokenizer());
  for (int32_t id = 0; id < DemoTokenizer().vocab_size(); ++id) {
    if (!DemoTokenizer().IsAdded(id)) continue;
    EXPECT_EQ(IsLegal(mask, id), id == eos) << id;
  }
}

TEST(Grammar, OnlyStopTokensFollowAFinishedOutput) {
  GrammarMatcher matcher = DemoMatcher({.kind = GrammarKind::kChoice, .text = R"(["ab"])"});
  std::vector<int32_t> ids;
  DemoTokenizer().EncodeText("ab", &ids);
  ASSERT_TRUE(matcher.AcceptAll(ids).ok());
  EXPECT_TRUE(matcher.IsComplete());
  auto mask = MaskOf(&matcher, DemoTokenizer());
  const int32_t eos = EosOf(DemoTokenizer());
  EXPECT_EQ(testing::LegalTokens(mask), std::vector<int32_t>{eos});
  ASSERT_TRUE(matcher.Accept(eos).ok());
  EXPECT_TRUE(matcher.IsTerminated());
  EXPECT_FALSE(matcher.Accept(eos).ok());
  ASSERT_TRUE(matcher.Rollback(1).ok());
  EXPECT_FALSE(matcher.IsTerminated());
}

TEST(Grammar, RefusedTokensLeaveTheState) {
  GrammarMatcher matcher = DemoMatcher(Schema(kPersonSchema));
  const auto before = MaskOf(&matcher, DemoTokenizer());
  for (const int32_t id : {-1, 0, DemoTokenizer().vocab_size(), 1 << 30, EosOf(DemoTokenizer())}) {
    EXPECT_EQ(matcher.Accept(id).code(), StatusCode::kInvalidRequest) << id;
  }
  EXPECT_EQ(MaskOf(&matcher, DemoTokenizer()), before);
  EXPECT_EQ(matcher.num_accepted(), 0);
}

TEST(Grammar, ExactlyTheTokensOfTheMaskAreAccepted) {
  std::mt19937 random(11);
  for (int round = 0; round < 4; ++round) {
    GrammarMatcher matcher = DemoMatcher(Schema(kPersonSchema));
    for (int step = 0; step < 12; ++step) {
      const auto mask = MaskOf(&matcher, DemoTokenizer());
      for (int32_t id = 0; id < DemoTokenizer().vocab_size(); ++id) {
        GrammarMatcher probe = matcher.Clone();
        ASSERT_EQ(probe.Accept(id).ok(), IsLegal(mask, id)) << "token " << id << " step " << step;
        id += static_cast<int32_t>(random() % 40);
      }
      const auto legal = testing::LegalTokens(mask);
      ASSERT_FALSE(legal.empty());
      ASSERT_TRUE(matcher.Accept(legal[random() % legal.size()]).ok());
      if (matcher.IsTerminated()) break;
    }
  }
}

// The state behind k accepted and forgotten tokens is that before them, for more than a step of
// drafts in any place.
TEST(Grammar, RollbackRestoresEveryEarlierMask) {
  for (const unsigned seed : {1U, 2U, 3U}) {
    std::mt19937 random(seed);
    GrammarMatcher walked = DemoMatcher(Schema(kPersonSchema));
    const auto walk =
        testing::WalkGrammar(&walked, DemoTokenizer(), EosOf(DemoTokenizer()), &random);
    ASSERT_TRUE(walk.ended) << walk.error << " seed " << seed;
    GrammarMatcher matcher = DemoMatcher(Schema(kPersonSchema));
    std::vector<std::vector<uint32_t>> masks;
    for (const int32_t id : walk.tokens) {
      masks.push_back(MaskOf(&matcher, DemoTokenizer()));
      ASSERT_TRUE(matcher.Accept(id).ok());
    }
    for (size_t length = walk.tokens.size(); length > 0;) {
      const size_t forgotten = std::min<size_t>(length, 1 + random() % 9);
      ASSERT_TRUE(matcher.Rollback(static_cast<int64_t>(forgotten)).ok());
      length -= forgotten;
      ASSERT_EQ(MaskOf(&matcher, DemoTokenizer()), masks[length]) << "seed " << seed;
      // Forward again and back: what was forgotten has left no trace.
      const size_t again = std::min<size_t>(walk.tokens.size() - length, random() % 8);
      ASSERT_TRUE(matcher.AcceptAll(std::span(walk.tokens).subspan(length, again)).ok());
      ASSERT_TRUE(matcher.Rollback(static_cast<int64_t>(again)).ok());
    }
    EXPECT_EQ(matcher.num_accepted(), 0);
    EXPECT_EQ(matcher.Rollback(1).code(), StatusCode::kInvalidRequest);
  }
}

TEST(Grammar, ClonesGoTheirOwnWay) {
  GrammarMatcher matcher = DemoMatcher({.kind = GrammarKind::kChoice, .text = R"(["xa", "xb"])"});
  std::vector<int32_t> ids;
  DemoTokenizer().EncodeText("x", &ids);
  ASSERT_TRUE(matcher.AcceptAll(ids).ok());
  GrammarMatcher clone = matcher.Clone();
  const auto before = MaskOf(&matcher, DemoTokenizer());
  EXPECT_EQ(MaskOf(&clone, DemoTokenizer()), before);
  ids.clear();
  DemoTokenizer().EncodeText("a", &ids);
  ASSERT_TRUE(clone.AcceptAll(ids).ok());
  EXPECT_TRUE(clone.IsComplete());
  EXPECT_FALSE(matcher.IsComplete());
  EXPECT_EQ(MaskOf(&matcher, DemoTokenizer()), before);
  ASSERT_TRUE(clone.Rollback(2).ok());
  EXPECT_EQ(clone.num_accepted(), 0);
}

TEST(Grammar, AReAdvancedMatcherEqualsTheOriginal) {
  std::mt19937 random(5);
  GrammarMatcher original = DemoMatcher(Schema(kPersonSchema));
  const auto walk =
      testing::WalkGrammar(&original, DemoTokenizer(), EosOf(DemoTokenizer()), &random);
  ASSERT_TRUE(walk.ended) << walk.error;
  ASSERT_TRUE(original.Rollback(4).ok());
  GrammarMatcher rebuilt = DemoMatcher(Schema(kPersonSchema));
  ASSERT_TRUE(rebuilt.AcceptAll(std::span(walk.tokens).first(walk.tokens.size() - 3)).ok());
  EXPECT_EQ(MaskOf(&rebuilt, DemoTokenizer()), MaskOf(&original, DemoTokenizer()));
}

// Appending forced tokens gives the outputs that single steps give: where a token is forced it is
// the only legal one, and where none is there are several.
TEST(Grammar, ForcedTokensAreTheOnlyLegalOnes) {
  int num_forced = 0;
  for (const unsigned seed : {1U, 2U, 3U, 4U}) {
    std::mt19937 random(seed);
    GrammarMatcher matcher = DemoMatcher(
        Schema(R"({"type": "object", "properties": {"long_property_name": {"const": "constant"}},
                   "required": ["long_property_name"], "additionalProperties": false})"));
    std::vector<uint32_t> mask(GrammarMaskWords(DemoTokenizer().vocab_size()));
    while (!matcher.IsTerminated()) {
      const auto forced = matcher.FindForcedToken(mask);
      ASSERT_TRUE(forced.ok());
      const auto legal = testing::LegalTokens(MaskOf(&matcher, DemoTokenizer()));
      ASSERT_FALSE(legal.empty());
      ASSERT_EQ(forced->has_value(), legal.size() == 1) << "seed " << seed;
      if (*forced) {
        ASSERT_EQ(**forced, legal.front());
        ++num_forced;
      }
      ASSERT_TRUE(matcher.Accept(legal[random() % legal.size()]).ok());
    }
  }
  EXPECT_GT(num_forced, 0);
}

TEST(Grammar, StopTokensOfTheRequestEndTheOutput) {
  auto grammar =
      testing::CompileWith(&testing::DemoPool(), {.kind = GrammarKind::kRegex, .text = "[a-z]+"});
  ASSERT_TRUE(grammar.ok());
  std::vector<int32_t> stop;
  DemoTokenizer().EncodeText(".", &stop);
  ASSERT_EQ(stop.size(), 1U);
  GrammarMatcher matcher(*grammar, DemoTokenizer(), {EosOf(DemoTokenizer()), stop[0]});
  EXPECT_FALSE(matcher.Accept(stop[0]).ok());
  std::vector<int32_t> ids;
  DemoTokenizer().EncodeText("abc", &ids);
  ASSERT_TRUE(matcher.AcceptAll(ids).ok());
  ASSERT_TRUE(matcher.Accept(stop[0]).ok());
  EXPECT_TRUE(matcher.IsTerminated());
}

TEST(Grammar, WorksWithTheReleasedVocabulary) {
  const auto& tokenizer = testing::ReleasedTokenizer();
  auto grammar = testing::CompileWith(&testing::ReleasedPool(), Schema(kPersonSchema));
  ASSERT_TRUE(grammar.ok()) << grammar.status().ToString();
  EXPECT_TRUE(grammar.value()->unenforced().empty());
  const auto matches = [&](std::string_view text) {
    return testing::Matches(GrammarMatcher(*grammar, tokenizer, {EosOf(tokenizer)}), tokenizer,
                            text);
  };
  EXPECT_TRUE(matches(R"({"name": "Größe 名前", "age": 7, "tags": []})"));
  EXPECT_FALSE(matches(R"({"name": "a name longer than twelve", "age": 7})"));
}

}  // namespace
}  // namespace deepinfer
