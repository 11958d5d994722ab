// What the loader refuses: malformed and hostile files by place, unknown kinds by name.
#include "text/tokenizer_file.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <functional>

#include "unit/text/text_test_data.h"

namespace deepinfer {
namespace {

namespace json = boost::json;

// A complete file with the three-pass pre-tokenizer, two merges and one added token.
json::object SmallFile() {
  static const json::value document = [] {
    json::value tiny = json::parse(
        testing::ReadWholeFile(testing::SourcePath("tests/data/text/tiny_tokenizer.json")));
    const auto split = [](std::string_view pattern) {
      return json::value{{"type", "Split"},
                         {"pattern", {{"Regex", pattern}}},
                         {"behavior", "Isolated"},
                         {"invert", false}};
    };
    tiny.as_object()["pre_tokenizer"] = {
        {"type", "Sequence"},
        {"pretokenizers",
         {split(kNumberPattern),
          split(kCjkPattern),
          split(kMainPattern),
          {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
    return tiny;
  }();
  return document.as_object();
}

Status ParseStatus(const json::value& document) {
  return ParseTokenizerFile(json::serialize(document)).status();
}

void ExpectRefused(const Status& status, StatusCode code, std::string_view part_of_message) {
  EXPECT_EQ(status.code(), code) << status.ToString();
  EXPECT_NE(status.message().find(part_of_message), std::string::npos) << status.ToString();
}

void ExpectRefused(const std::function<void(json::object*)>& change, StatusCode code,
                   std::string_view part_of_message) {
  json::object document = SmallFile();
  change(&document);
  ExpectRefused(ParseStatus(document), code, part_of_message);
}

json::object& Model(json::object* document) { return document->at("model").as_object(); }
json::object& Vocab(json::object* document) { return Model(document).at("vocab").as_object(); }
json::array& Merges(json::object* document) { return Model(document).at("merges").as_array(); }
json::array& Added(json::object* document) { return document->at("added_tokens").as_array(); }
json::array& Steps(json::object* document) {
  return document->at("pre_tokenizer").at("pretokenizers").as_array();
}

TEST(TokenizerFile, TheUnchangedFileIsAccepted) {
  const Result<TokenizerFile> file = ParseTokenizerFile(json::serialize(SmallFile()));
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ(file->pre_tokenizer, PreTokenizerKind::kThreePass);
  EXPECT_EQ(file->token_strings.size(), 512u);
  EXPECT_EQ(file->merges_by_rank.size(), 251u);
  EXPECT_EQ(file->added_tokens.size(), 5u);
}

TEST(TokenizerFile, MergesMayBePairs) {
  const Result<TokenizerFile> plain = ParseTokenizerFile(json::serialize(SmallFile()));
  json::object document = SmallFile();
  for (json::value& merge : Merges(&document)) {
    const auto text = json::value_to<std::string>(merge);
    const size_t space = text.find(' ');
    merge = json::array{text.substr(0, space), text.substr(space + 1)};
  }
  const Result<TokenizerFile> pairs = ParseTokenizerFile(json::serialize(document));
  ASSERT_TRUE(plain.ok() && pairs.ok()) << pairs.status().ToString();
  ASSERT_EQ(pairs->merges_by_rank.size(), plain->merges_by_rank.size());
  for (size_t i = 0; i < pairs->merges_by_rank.size(); ++i) {
    EXPECT_EQ(pairs->merges_by_rank[i].result, plain->merges_by_rank[i].result);
  }
}

TEST(TokenizerFile, TextThatIsNotJsonIsRefused) {
  for (const std::string_view text :
       {"", "{", "nul", "[1,]", "{\"a\":NaN}", "\"\xFF\"", "{\"a\":\"\\ud800\"}", "{} {}"}) {
    ExpectRefused(ParseTokenizerFile(text).status(), StatusCode::kDataCorruption, "not valid JSON");
  }
  for (const std::string_view text : {"[]", "0", "null", "\"BPE\""}) {
    ExpectRefused(ParseTokenizerFile(text).status(), StatusCode::kDataCorruption, "JSON object");
  }
}

TEST(TokenizerFile, DeepNestingAndHugeFilesAreRefused) {
  ExpectRefused(ParseTokenizerFile(std::string(50 << 20, '[')).status(),
                StatusCode::kDataCorruption, "not valid JSON");
  ExpectRefused(ParseTokenizerFile(std::string(kMaxTokenizerFileBytes + 1, ' ')).status(),
                StatusCode::kDataCorruption, "limit");
}

TEST(TokenizerFile, MissingPartsAreNamed) {
  for (const std::string_view key : {"pre_tokenizer", "model"}) {
    ExpectRefused([&](json::object* d) { d->erase(key); }, StatusCode::kDataCorruption, key);
  }
  for (const std::string_view key : {"type", "vocab", "merges"}) {
    ExpectRefused([&](json::object* d) { Model(d).erase(key); }, StatusCode::kDataCorruption, key);
  }
  for (const std::string_view key : {"id", "content"}) {
    ExpectRefused([&](json::object* d) { Added(d)[0].as_object().erase(key); },
                  StatusCode::kDataCorruption, key);
  }
}

TEST(TokenizerFile, PartsOfTheWrongTypeAreNamed) {
  for (const std::string_view key :
       {"model", "pre_tokenizer", "added_tokens", "normalizer", "decoder", "post_processor"}) {
    ExpectRefused([&](json::object* d) { (*d)[key] = 7; }, StatusCode::kDataCorruption, key);
  }
  for (const std::string_view key : {"vocab", "merges", "type"}) {
    ExpectRefused([&](json::object* d) { Model(d)[key] = 7; }, StatusCode::kDataCorruption, key);
  }
  ExpectRefused([](json::object* d) { Steps(d)[0] = 7; }, StatusCode::kDataCorruption, "step");
  ExpectRefused([](json::object* d) { Added(d)[0] = 7; }, StatusCode::kDataCorruption,
                "added token");
  ExpectRefused([](json::object* d) { Added(d)[0].as_object()["lstrip"] = 1; },
                StatusCode::kDataCorruption, "lstrip");
}

TEST(TokenizerFile, IdsMustBeSmallNonNegativeIntegers) {
  for (const json::value& id : {json::value(-1), json::value(1.5), json::value("7"),
                                json::value(nullptr), json::value(int64_t{kMaxVocabSize}),
                                json::value(int64_t{1} << 40), json::value(UINT64_MAX)}) {
    ExpectRefused([&](json::object* d) { Vocab(d)["he"] = id; }, StatusCode::kDataCorruption,
                  "\"he\"");
    ExpectRefused([&](json::object* d) { Added(d)[3].as_object()["id"] = id; },
                  StatusCode::kDataCorruption, "<｜deepseek_image｜>");
  }
}

TEST(TokenizerFile, AnIdBelongsToOneToken) {
  ExpectRefused([](json::object* d) { Vocab(d)["he"] = Vocab(d).at("er"); },
                StatusCode::kDataCorruption, "belongs to both");
  ExpectRefused([](json::object* d) { Added(d)[3].as_object()["id"] = Vocab(d).at("he"); },
                StatusCode::kDataCorruption, "belongs to both");
  ExpectRefused([](json::object* d) { Added(d)[0].as_object()["id"] = 600; },
                StatusCode::kDataCorruption, "in model.vocab");
}

TEST(TokenizerFile, ContentsMustBeDistinctAndOfBoundedSize) {
  ExpectRefused([](json::object* d) { Vocab(d)[""] = 600; }, StatusCode::kDataCorruption, "empty");
  ExpectRefused([](json::object* d) { Added(d).push_back(json::value(Added(d)[4])); },
                StatusCode::kDataCorruption, "twice");
  for (const size_t size_bytes : {size_t{0}, kMaxAddedTokenBytes + 1}) {
    ExpectRefused(
        [&](json::object* d) { Added(d)[3].as_object()["content"] = std::string(size_bytes, 'x'); },
        StatusCode::kDataCorruption, "bytes");
  }
}

TEST(TokenizerFile, MergesMustJoinKnownTokensOnce) {
  const auto with_merge = [](json::value merge) {
    return [merge = std::move(merge)](json::object* d) { Merges(d)[3] = merge; };
  };
  for (const json::value& merge :
       {json::value("he"), json::value(""), json::value("h e r"), json::value(7),
        json::value(json::array{"h"}), json::value(json::array{"h", "e", "r"}),
        json::value(json::array{"h", 7})}) {
    ExpectRefused(with_merge(merge), StatusCode::kDataCorruption, "merges[3]");
  }
  ExpectRefused(with_merge("unknown e"), StatusCode::kDataCorruption, "\"unknown\"");
  ExpectRefused(with_merge("h unknown"), StatusCode::kDataCorruption, "\"unknown\"");
  ExpectRefused(with_merge("h h"), StatusCode::kDataCorruption, "\"hh\"");
  ExpectRefused([](json::object* d) { Merges(d)[3] = Merges(d)[0]; }, StatusCode::kDataCorruption,
                "merges[3]");
}

TEST(TokenizerFile, UnknownKindsAreNamed) {
  const auto unsupported = [](const std::function<void(json::object*)>& change,
                              std::string_view part_of_message) {
    ExpectRefused(change, StatusCode::kUnsupported, part_of_message);
  };
  unsupported([](json::object* d) { Model(d)["type"] = "Unigram"; }, "Unigram");
  unsupported([](json::object* d) { (*d)["normalizer"] = {{"type", "NFKC"}}; }, "NFKC");
  unsupported(
      [](json::object* d) {
        (*d)["normalizer"] = {{"type", "Sequence"},
                              {"normalizers", json::array{{{"type", "Lowercase"}}}}};
      },
      "Lowercase");
  unsupported([](json::object* d) { (*d)["decoder"] = {{"type", "WordPiece"}}; }, "WordPiece");
  unsupported(
      [](json::object* d) {
        (*d)["post_processor"] = {{"type", "TemplateProcessing"}};
      },
      "TemplateProcessing");
  unsupported(
      [](json::object* d) {
        (*d)["pre_tokenizer"] = {{"type", "Metaspace"}};
      },
      "Metaspace");
  unsupported([](json::object* d) { Steps(d)[1].as_object()["type"] = "Digits"; }, "Digits");
}

TEST(TokenizerFile, PreTokenizersThatWouldSplitOtherwiseAreRefused) {
  const auto unsupported = [](const std::function<void(json::object*)>& change,
                              std::string_view part_of_message) {
    ExpectRefused(change, StatusCode::kUnsupported, part_of_message);
  };
  unsupported([](json::object* d) { Steps(d)[0].at("pattern").as_object()["Regex"] = "\\p{N}"; },
              "unknown pre-tokenizer pattern");
  unsupported([](json::object* d) { std::swap(Steps(d)[0], Steps(d)[1]); },
              "unknown pre-tokenizer pattern");
  unsupported(
      [](json::object* d) {
        Steps(d)[0].as_object()["pattern"] = {{"String", "x"}};
      },
      "regular expression");
  unsupported([](json::object* d) { Steps(d)[0].as_object()["behavior"] = "Removed"; }, "Removed");
  unsupported([](json::object* d) { Steps(d)[0].as_object()["invert"] = true; }, "invert");
  unsupported([](json::object* d) { Steps(d)[3].as_object()["use_regex"] = true; }, "use_regex");
  unsupported([](json::object* d) { Steps(d)[3].as_object()["add_prefix_space"] = true; },
              "add_prefix_space");
  unsupported([](json::object* d) { Steps(d).pop_back(); }, "three Split");
  unsupported([](json::object* d) { Steps(d).erase(Steps(d).begin() + 2); }, "three Split");
  unsupported([](json::object* d) { Steps(d).push_back(json::value(Steps(d)[0])); }, "Split");
}

TEST(TokenizerFile, FlagsThatWouldChangeIdsAreRefused) {
  for (const std::string_view flag : {"single_word", "lstrip", "rstrip"}) {
    ExpectRefused([&](json::object* d) { Added(d)[0].as_object()[flag] = true; },
                  StatusCode::kUnsupported, flag);
  }
  struct Setting {
    std::string_view key;
    json::value value;
  };
  const Setting settings[] = {
      {"dropout", 0.1},        {"unk_token", "<unk>"},  {"continuing_subword_prefix", "##"},
      {"byte_fallback", true}, {"ignore_merges", true}, {"end_of_word_suffix", "</w>"},
  };
  for (const Setting& setting : settings) {
    ExpectRefused([&](json::object* d) { Model(d)[setting.key] = setting.value; },
                  StatusCode::kUnsupported, setting.key);
  }
}

TEST(TokenizerFile, EveryByteNeedsAToken) {
  json::object document = SmallFile();
  // Byte 0x00, which no merge of the small file uses.
  Vocab(&document).erase("Ā");
  const auto tokenizer = Tokenizer::FromJson(json::serialize(document));
  ExpectRefused(tokenizer.status(), StatusCode::kDataCorruption, "byte 0x00");
}

TEST(TokenizerFile, MessagesQuoteOnlyTheBeginningOfLongText) {
  json::object document = SmallFile();
  std::string type;
  for (int i = 0; i < 100000; ++i) type += "中";
  Model(&document)["type"] = type;
  const Status status = ParseStatus(document);
  EXPECT_LT(status.message().size(), 200u);
  EXPECT_TRUE(json::serialize(json::value(status.message())).size() > 0);
}

}  // namespace
}  // namespace deepinfer
