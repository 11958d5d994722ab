#include "text/engram_token_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "unit/text/text_test_data.h"

namespace deepinfer {
namespace {

using testing::DemoTokenizer;
using testing::Encode;
using testing::ReleasedTokenizer;
using testing::TinyTokenizer;

std::vector<int32_t> MapOf(const Tokenizer& tokenizer) {
  Result<std::vector<int32_t>> map = BuildEngramTokenMap(tokenizer);
  EXPECT_TRUE(map.ok()) << map.status().ToString();
  return map.ok() ? *std::move(map) : std::vector<int32_t>();
}

size_t NumClasses(const std::vector<int32_t>& map) {
  return std::set<int32_t>(map.begin(), map.end()).size();
}

const std::vector<int32_t>& ReleasedMap() {
  static const std::vector<int32_t> map = MapOf(ReleasedTokenizer());
  return map;
}

// The class of a text that is one token.
int32_t ClassOf(std::string_view text) {
  const std::vector<int32_t> ids = Encode(ReleasedTokenizer(), text);
  EXPECT_EQ(ids.size(), 1u) << text;
  return ReleasedMap()[static_cast<size_t>(ids[0])];
}

TEST(EngramTokenMap, ReleasedTokenizerHasTheClassesOfTheCheckpoint) {
  ASSERT_EQ(ReleasedMap().size(), 129280u);
  EXPECT_EQ(NumClasses(ReleasedMap()), 99092u);
  EXPECT_EQ(ReleasedMap()[2], 2);
}

// FNV-1a of the map that another implementation made with Python's unicodedata (little-endian ids).
TEST(EngramTokenMap, ReleasedMapEqualsAnIndependentOne) {
  uint64_t digest = 0xCBF29CE484222325u;
  for (const int32_t id : ReleasedMap()) {
    for (int shift = 0; shift < 32; shift += 8) {
      digest = (digest ^ (static_cast<uint32_t>(id) >> shift & 0xFF)) * 0x100000001B3u;
    }
  }
  EXPECT_EQ(digest, 0x6B5CFA68A5F57BA6u);
}

TEST(EngramTokenMap, DemoTokenizerHasTheClassesOfItsCheckpoint) {
  const std::vector<int32_t> map = MapOf(DemoTokenizer());
  ASSERT_EQ(map.size(), 8224u);
  EXPECT_EQ(NumClasses(map), 6795u);
  EXPECT_EQ(map[2], 2);
}

TEST(EngramTokenMap, TinyTokenizerGivesTheRecordedMap) {
  const std::vector<int32_t> map = MapOf(TinyTokenizer());
  EXPECT_EQ(NumClasses(map), 424u);
  EXPECT_EQ(map, testing::ToIds(boost::json::parse(testing::ReadWholeFile(
                     testing::SourcePath("tests/data/text/tiny_engram_token_map.json")))));
}

TEST(EngramTokenMap, ClassesAreNumberedInFirstSeenOrder) {
  int32_t next = 0;
  for (const int32_t id : ReleasedMap()) {
    ASSERT_LE(id, next);
    next = std::max(next, id + 1);
  }
}

TEST(EngramTokenMap, CaseAccentsAndOuterSpaceDoNotMatter) {
  EXPECT_EQ(ClassOf("The"), ClassOf(" the"));
  EXPECT_EQ(ClassOf("é"), ClassOf("E"));
  EXPECT_EQ(ClassOf("，"), ClassOf(","));
  EXPECT_NE(ClassOf("the"), ClassOf("that"));
}

TEST(EngramTokenMap, SpaceAndRunsOfSpaceShareAClassOfTheirOwn) {
  EXPECT_EQ(ClassOf(" "), ClassOf("    "));
  EXPECT_EQ(ClassOf(" "), ClassOf("\n\n"));
  EXPECT_NE(ClassOf(" "), ClassOf("\v"));
}

TEST(EngramTokenMap, FragmentsOfCodePointsStayApart) {
  EXPECT_NE(ReleasedMap()[static_cast<size_t>(175)], ReleasedMap()[static_cast<size_t>(257)]);
}

}  // namespace
}  // namespace deepinfer
