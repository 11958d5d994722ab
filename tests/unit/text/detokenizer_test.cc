#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "base/utf8.h"
#include "unit/text/text_test_data.h"

namespace deepinfer {
namespace {

using testing::ReleasedTokenizer;

// Ids 3..258 are the single bytes, in the order of their printable spelling.
int32_t ByteId(unsigned char byte) {
  for (int32_t id = 3; id < 259; ++id) {
    if (ReleasedTokenizer().TokenBytes(id) == std::string_view(reinterpret_cast<char*>(&byte), 1)) {
      return id;
    }
  }
  return -1;
}

TEST(Detokenizer, CodePointWaitsForItsLastByte) {
  Detokenizer detokenizer(ReleasedTokenizer());
  EXPECT_EQ(detokenizer.Push(ByteId(0xE4)), "");
  EXPECT_EQ(detokenizer.Push(ByteId(0xB8)), "");
  EXPECT_EQ(detokenizer.num_pending_bytes(), 2u);
  EXPECT_EQ(detokenizer.Push(ByteId(0xAD)), "中");
  EXPECT_EQ(detokenizer.num_pending_bytes(), 0u);
}

TEST(Detokenizer, ByteThatCannotBecomeValidIsReplacedAtOnce) {
  Detokenizer detokenizer(ReleasedTokenizer());
  EXPECT_EQ(detokenizer.Push(ByteId(0x80)), kReplacementUtf8);
  EXPECT_EQ(detokenizer.Push(ByteId(0xE4)), "");
  EXPECT_EQ(detokenizer.Push(ByteId('a')), std::string(kReplacementUtf8) + "a");
}

TEST(Detokenizer, UnfinishedTailIsDroppedAndTheNextStreamStartsClean) {
  Detokenizer detokenizer(ReleasedTokenizer());
  EXPECT_EQ(detokenizer.Push(ByteId(0xF0)), "");
  EXPECT_EQ(detokenizer.Finish(), "");
  EXPECT_EQ(detokenizer.Push(ByteId('a')), "a");
}

TEST(Detokenizer, AddedTokensAppearAsTheirString) {
  Detokenizer detokenizer(ReleasedTokenizer());
  EXPECT_EQ(detokenizer.Push(128822), "</think>");
  EXPECT_EQ(detokenizer.Push(128825), "｜DSML｜");
}

TEST(Detokenizer, IdsThatDoNotExistAddNothing) {
  Detokenizer detokenizer(ReleasedTokenizer());
  EXPECT_EQ(detokenizer.Push(-1), "");
  EXPECT_EQ(detokenizer.Push(129280), "");
  EXPECT_EQ(detokenizer.Push(ByteId('a')), "a");
}

TEST(Detokenizer, StreamOfRandomIdsEqualsDecodingThemAtOnce) {
  for (unsigned seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Detokenizer detokenizer(ReleasedTokenizer());
    std::vector<int32_t> ids;
    std::string streamed;
    for (int i = 0; i < 50; ++i) {
      // Half of the ids are single bytes, so that code points really get split.
      ids.push_back(static_cast<int32_t>(random() % (random() % 2 == 0 ? 259 : 129280)));
      streamed += detokenizer.Push(ids.back());
      ASSERT_TRUE(IsValidUtf8(streamed));
    }
    if (detokenizer.num_pending_bytes() > 0) streamed += kReplacementUtf8;
    ASSERT_EQ(streamed, ReleasedTokenizer().Decode(ids));
  }
}

}  // namespace
}  // namespace deepinfer
