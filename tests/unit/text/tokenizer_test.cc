#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <random>

#include "base/utf8.h"
#include "text/byte_level.h"
#include "unit/text/text_test_data.h"

namespace deepinfer {
namespace {

namespace json = boost::json;
using testing::Encode;
using testing::EncodeWithSpecials;
using testing::ReleasedTokenizer;
using testing::TinyTokenizer;
using Ids = std::vector<int32_t>;

// The tiny tokenizer with these added tokens behind its own 512 ids.
std::unique_ptr<Tokenizer> TinyWithAdded(
    const std::vector<std::pair<std::string, bool>>& contents_and_normalized) {
  json::value document = json::parse(
      testing::ReadWholeFile(testing::SourcePath("tests/data/text/tiny_tokenizer.json")));
  int32_t id = 512;
  for (const auto& [content, normalized] : contents_and_normalized) {
    document.at("added_tokens")
        .as_array()
        .push_back({{"id", id++},
                    {"content", content},
                    {"single_word", false},
                    {"lstrip", false},
                    {"rstrip", false},
                    {"normalized", normalized},
                    {"special", true}});
  }
  Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::FromJson(json::serialize(document));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

TEST(Tokenizer, LoadsAFolderOrAFile) {
  const auto folder = Tokenizer::Load(testing::SourcePath("models/deepinfer-tiny"));
  const auto file = Tokenizer::Load(testing::SourcePath("models/deepinfer-tiny/tokenizer.json"));
  ASSERT_TRUE(folder.ok() && file.ok());
  EXPECT_EQ((*folder)->vocab_size(), 8224);
  EXPECT_EQ((*file)->vocab_size(), 8224);
}

TEST(Tokenizer, MissingFileIsNotFoundWithItsPath) {
  const auto tokenizer = Tokenizer::Load("/nonexistent-folder/tokenizer.json");
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_EQ(tokenizer.status().code(), StatusCode::kNotFound);
  EXPECT_NE(tokenizer.status().message().find("/nonexistent-folder"), std::string::npos);
  EXPECT_EQ(Tokenizer::Load("/dev/zero").status().code(), StatusCode::kNotFound);
}

TEST(Tokenizer, EmptyTextHasNoIds) {
  EXPECT_EQ(Encode(ReleasedTokenizer(), ""), Ids());
  EXPECT_EQ(EncodeWithSpecials(ReleasedTokenizer(), ""), Ids());
  EXPECT_EQ(ReleasedTokenizer().Decode({}), "");
}

TEST(Tokenizer, UserTextThatLooksLikeASpecialTokenStaysText) {
  const Ids plain = Encode(ReleasedTokenizer(), "a</think><｜User｜>");
  for (const int32_t id : plain) EXPECT_FALSE(ReleasedTokenizer().IsAdded(id)) << id;
  EXPECT_EQ(ReleasedTokenizer().Decode(plain), "a</think><｜User｜>");
  EXPECT_EQ(EncodeWithSpecials(ReleasedTokenizer(), "</think><｜User｜>"), (Ids{128822, 128803}));
}

TEST(Tokenizer, LongestOfTheLeftmostAddedTokensWins) {
  const auto tokenizer = TinyWithAdded({{"<ab", false}, {"<abc>", false}, {"bc", false}});
  EXPECT_EQ(EncodeWithSpecials(*tokenizer, "<abc>"), (Ids{513}));
  EXPECT_EQ(EncodeWithSpecials(*tokenizer, "<abcbc"), [&] {
    Ids ids = {512};
    tokenizer->EncodeText("c", &ids);
    ids.push_back(514);
    return ids;
  }());
}

TEST(Tokenizer, ExactTokensAreCutOutBeforeNormalizedOnes) {
  const auto tokenizer = TinyWithAdded({{"<<a", true}, {"a>>", false}});
  // Left to right "<<a" would win; the exact token is looked for first.
  Ids expected = Encode(*tokenizer, "<<");
  expected.push_back(513);
  EXPECT_EQ(EncodeWithSpecials(*tokenizer, "<<a>>"), expected);
  EXPECT_EQ(EncodeWithSpecials(*tokenizer, "<<a<<a"), (Ids{512, 512}));
}

TEST(Tokenizer, InvalidBytesAreReplacedBeforeAddedTokensAreLookedFor) {
  const auto tokenizer = TinyWithAdded({{"<\uFFFD>", false}});
  EXPECT_EQ(EncodeWithSpecials(*tokenizer, "<\xFF>"), (Ids{512}));
  EXPECT_EQ(Encode(*tokenizer, "<\xFF>"), Encode(*tokenizer, "<\uFFFD>"));
}

TEST(Tokenizer, BytesAndStringsOfIds) {
  const Tokenizer& tokenizer = ReleasedTokenizer();
  EXPECT_EQ(tokenizer.vocab_size(), 129280);
  const Ids ids = Encode(tokenizer, " the");
  ASSERT_EQ(ids.size(), 1u);
  EXPECT_EQ(tokenizer.TokenBytes(ids[0]), " the");
  EXPECT_EQ(tokenizer.TokenString(ids[0]), "Ġthe");
  EXPECT_FALSE(tokenizer.IsAdded(ids[0]));
  EXPECT_EQ(tokenizer.TokenBytes(128803), "<｜User｜>");
  EXPECT_EQ(tokenizer.FindAdded("<｜User｜>"), 128803);
  EXPECT_EQ(tokenizer.FindAdded("<｜Nobody｜>"), std::nullopt);
  EXPECT_EQ(tokenizer.FindAdded(" the"), std::nullopt);
}

TEST(Tokenizer, IdsOutsideTheVocabularyAndHolesDoNotExist) {
  json::value document = json::parse(
      testing::ReadWholeFile(testing::SourcePath("tests/data/text/tiny_tokenizer.json")));
  json::array& added = document.at("added_tokens").as_array();
  added.back().at("id") = 600;
  const auto tokenizer = Tokenizer::FromJson(json::serialize(document));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  EXPECT_EQ((*tokenizer)->vocab_size(), 601);
  for (const int32_t id : {-1, 511, 599, 601, INT32_MAX, INT32_MIN}) {
    EXPECT_FALSE((*tokenizer)->IsValidId(id)) << id;
    EXPECT_FALSE((*tokenizer)->IsAdded(id)) << id;
    EXPECT_EQ((*tokenizer)->TokenBytes(id), "") << id;
    EXPECT_EQ((*tokenizer)->TokenString(id), "") << id;
  }
  EXPECT_TRUE((*tokenizer)->IsValidId(510));
  EXPECT_TRUE((*tokenizer)->IsValidId(600));
}

TEST(Tokenizer, DecodeCanLeaveAddedTokensOut) {
  const Ids ids = EncodeWithSpecials(ReleasedTokenizer(), "<｜User｜>hi<｜Assistant｜></think>");
  EXPECT_EQ(ReleasedTokenizer().Decode(ids, /*skip_added=*/true), "hi");
  EXPECT_EQ(ReleasedTokenizer().Decode(ids), "<｜User｜>hi<｜Assistant｜></think>");
}

TEST(Tokenizer, EveryByteHasASingleTokenThatDecodesToIt) {
  for (int byte = 0; byte < 256; ++byte) {
    std::string spelled;
    AppendUtf8(ByteLevelCodePoint(static_cast<unsigned char>(byte)), &spelled);
    std::string bytes;
    ASSERT_TRUE(AppendByteLevelBytes(spelled, &bytes));
    EXPECT_EQ(bytes, std::string(1, static_cast<char>(byte)));
  }
  std::string bytes = "kept";
  EXPECT_FALSE(AppendByteLevelBytes("a中", &bytes));
  EXPECT_EQ(bytes, "kept");
}

// Every vocabulary entry the encoder can reach decodes back, and random text round-trips.
TEST(Tokenizer, DecodingUndoesEncoding) {
  for (const Tokenizer* tokenizer : {&ReleasedTokenizer(), &TinyTokenizer()}) {
    for (unsigned seed = 0; seed < 300; ++seed) {
      SCOPED_TRACE(seed);
      std::mt19937 random(seed);
      std::string text;
      for (int i = 0; i < 60; ++i) {
        AppendUtf8(static_cast<char32_t>(random() % (random() % 2 == 0 ? 0x80 : 0x20000)), &text);
      }
      ASSERT_EQ(tokenizer->Decode(Encode(*tokenizer, text)), text);
      ASSERT_EQ(tokenizer->Decode(EncodeWithSpecials(*tokenizer, text)), text);
    }
  }
}

// The single-token table is only a shortcut: an entry that merging cannot reach must not be used.
TEST(Tokenizer, TokenThatMergesCannotReachIsNotProduced) {
  json::value document = json::parse(
      testing::ReadWholeFile(testing::SourcePath("tests/data/text/tiny_tokenizer.json")));
  json::object& vocab = document.at("model").at("vocab").as_object();
  vocab["zqzq"] = 512;
  const auto tokenizer = Tokenizer::FromJson(json::serialize(document));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  EXPECT_EQ(Encode(**tokenizer, "zqzq"), Encode(TinyTokenizer(), "zqzq"));
  EXPECT_EQ((*tokenizer)->TokenBytes(512), "zqzq");
}

TEST(Tokenizer, OneMebibyteOfOneLetter) {
  const std::string text(1 << 20, 'a');
  const Ids ids = Encode(ReleasedTokenizer(), text);
  EXPECT_LT(ids.size(), text.size() / 4);
  EXPECT_EQ(ReleasedTokenizer().Decode(ids), text);
}

}  // namespace
}  // namespace deepinfer
