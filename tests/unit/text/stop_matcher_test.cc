#include "text/stop_matcher.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer {
namespace {

struct Match {
  size_t begin = 0;
  std::string pattern;

  bool operator==(const Match&) const = default;
};

bool EndsWith(std::string_view text, std::string_view suffix) {
  return text.size() >= suffix.size() && text.substr(text.size() - suffix.size()) == suffix;
}

// The rule itself: the first end at which any pattern ends, then the longest pattern there.
std::optional<Match> FindNaively(const std::vector<std::string>& patterns, std::string_view text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::string best;
    for (const std::string& pattern : patterns) {
      if (pattern.size() > best.size() && EndsWith(text.substr(0, end), pattern)) best = pattern;
    }
    if (!best.empty()) return Match{end - best.size(), best};
  }
  return std::nullopt;
}

// Longest end of `text` that begins a pattern.
size_t HeldNaively(const std::vector<std::string>& patterns, std::string_view text) {
  size_t held = 0;
  for (const std::string& pattern : patterns) {
    for (size_t n = held + 1; n < pattern.size(); ++n) {
      if (EndsWith(text, std::string_view(pattern).substr(0, n))) held = n;
    }
  }
  return held;
}

// Feeds `text` in pieces, checking after each that exactly the claimable end is held.
std::optional<Match> Feed(const std::vector<std::string>& patterns, const std::string& text,
                          const std::vector<size_t>& piece_sizes) {
  StopMatcher matcher(patterns);
  size_t released = 0;
  size_t offset = 0;
  size_t piece = 0;
  while (offset < text.size()) {
    const size_t size = std::min(text.size() - offset, piece_sizes[piece++ % piece_sizes.size()]);
    const StopMatcher::Advance advance = matcher.Push(std::string_view(text).substr(offset, size));
    released += advance.num_released_bytes;
    if (matcher.matched()) {
      RC_ASSERT(offset + advance.num_read_bytes == released + matcher.match().size());
      RC_ASSERT(matcher.num_held_bytes() == 0u);
      return Match{released, matcher.match()};
    }
    RC_ASSERT(advance.num_read_bytes == size);
    offset += size;
    RC_ASSERT(offset - released == matcher.num_held_bytes());
    RC_ASSERT(matcher.num_held_bytes() ==
              HeldNaively(patterns, std::string_view(text).substr(0, offset)));
  }
  return std::nullopt;
}

// Few letters, so that patterns overlap each other and themselves.
rc::Gen<std::string> Word(size_t max_size) {
  return rc::gen::mapcat(rc::gen::inRange<size_t>(1, max_size + 1), [](size_t size) {
    return rc::gen::container<std::string>(size, rc::gen::element('a', 'b', 'c'));
  });
}

TEST(StopMatcherTest, AgreesWithTheRuleOnRandomPatternsTextsAndSplits) {
  EXPECT_TRUE(rc::check([] {
    const auto patterns = *rc::gen::nonEmpty(rc::gen::container<std::vector<std::string>>(Word(6)));
    const auto text = *Word(60);
    const auto sizes =
        *rc::gen::nonEmpty(rc::gen::container<std::vector<size_t>>(rc::gen::inRange<size_t>(1, 9)));
    RC_ASSERT(Feed(patterns, text, sizes) == FindNaively(patterns, text));
  }));
}

TEST(StopMatcherTest, TheMatchThatEndsFirstWinsThenTheLongest) {
  StopMatcher first({"b", "abc"});
  EXPECT_EQ(first.Push("xabc").num_released_bytes, 2u);
  EXPECT_EQ(first.match(), "b");
  StopMatcher longest({"bc", "abc"});
  EXPECT_EQ(longest.Push("zabc").num_released_bytes, 1u);
  EXPECT_EQ(longest.match(), "abc");
}

TEST(StopMatcherTest, NoPatternsHoldNothing) {
  StopMatcher matcher({"", ""});
  EXPECT_FALSE(matcher.active());
  EXPECT_EQ(matcher.Push("text").num_released_bytes, 4u);
  EXPECT_FALSE(matcher.matched());
}

TEST(StopMatcherTest, NoMatchEndsWhereNoneMayButOneMayBeginThere) {
  StopMatcher matcher({"ab", "abcd", "x"});
  // "ab" might have matched and is text now; it is held for "abcd" only.
  EXPECT_EQ(matcher.Push("xxab", false).num_released_bytes, 2u);
  EXPECT_EQ(matcher.num_held_bytes(), 2u);
  EXPECT_FALSE(matcher.matched());
  matcher.Push("c", false);
  EXPECT_EQ(matcher.num_held_bytes(), 3u);
  const StopMatcher::Advance advance = matcher.Push("d rest");
  EXPECT_EQ(matcher.match(), "abcd");
  EXPECT_EQ(advance.num_released_bytes, 0u);
  EXPECT_EQ(advance.num_read_bytes, 1u);
}

TEST(StopMatcherTest, WhatNoMatchCanClaimIsReleasedThoughAPatternEndsThere) {
  StopMatcher matcher({"aba"});
  // Of the ignored "aba" the last letter may begin another one.
  EXPECT_EQ(matcher.Push("aba", false).num_released_bytes, 2u);
  EXPECT_EQ(matcher.num_held_bytes(), 1u);
  EXPECT_EQ(matcher.Push("ba").num_released_bytes, 0u);
  EXPECT_TRUE(matcher.matched());
}

TEST(StopMatcherTest, RestartForgetsMatchAndHeldText) {
  StopMatcher matcher({"END"});
  matcher.Push("xEND");
  ASSERT_TRUE(matcher.matched());
  EXPECT_EQ(matcher.match_index(), 0);
  matcher.Restart();
  EXPECT_FALSE(matcher.matched());
  matcher.Push("EN");
  EXPECT_EQ(matcher.num_held_bytes(), 2u);
  matcher.Restart();
  EXPECT_EQ(matcher.Push("D").num_released_bytes, 1u);
}

}  // namespace
}  // namespace deepinfer
