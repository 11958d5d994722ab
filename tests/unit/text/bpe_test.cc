#include "text/bpe.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

namespace deepinfer {
namespace {

std::array<int32_t, 256> IdentityByteIds() {
  std::array<int32_t, 256> ids;
  for (int32_t i = 0; i < 256; ++i) ids[static_cast<size_t>(i)] = i;
  return ids;
}

// The definition: merge the leftmost pair of lowest rank until no pair merges.
std::vector<int32_t> EncodeByDefinition(const std::vector<BpeMerge>& merges,
                                        std::string_view piece) {
  std::map<std::pair<int32_t, int32_t>, size_t> ranks;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    ranks[{merges[rank].left, merges[rank].right}] = rank;
  }
  std::vector<int32_t> symbols;
  for (const char c : piece) symbols.push_back(static_cast<unsigned char>(c));
  while (true) {
    size_t best_rank = merges.size();
    size_t best = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found = ranks.find({symbols[i], symbols[i + 1]});
      if (found != ranks.end() && found->second < best_rank) {
        best_rank = found->second;
        best = i;
      }
    }
    if (best_rank == merges.size()) return symbols;
    symbols[best] = merges[best_rank].result;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

// Merges over three letters; a result may be reached from several pairs, as in real vocabularies.
std::vector<BpeMerge> RandomMerges(std::mt19937* random) {
  std::vector<std::string> tokens(256);
  for (size_t i = 0; i < 256; ++i) tokens[i] = std::string(1, static_cast<char>(i));
  std::vector<int32_t> usable = {'a', 'b', 'c'};
  std::map<std::string, int32_t> ids;
  std::map<std::pair<int32_t, int32_t>, bool> seen;
  std::vector<BpeMerge> merges;
  for (int i = 0; i < 60; ++i) {
    const int32_t left = usable[(*random)() % usable.size()];
    const int32_t right = usable[(*random)() % usable.size()];
    const std::string joined =
        tokens[static_cast<size_t>(left)] + tokens[static_cast<size_t>(right)];
    if (joined.size() > 12 || !seen.emplace(std::pair(left, right), true).second) continue;
    const auto [it, is_new] = ids.emplace(joined, static_cast<int32_t>(tokens.size()));
    if (is_new) {
      usable.push_back(it->second);
      tokens.push_back(joined);
    }
    merges.push_back({left, right, it->second});
  }
  return merges;
}

TEST(Bpe, EqualsTheDefinitionOnRandomMergesAndPieces) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const std::vector<BpeMerge> merges = RandomMerges(&random);
    const BpeModel model(merges, IdentityByteIds());
    // Sizes on both sides of the step from the scan to the heap.
    for (const size_t size_bytes : {0, 1, 2, 3, 7, 31, 32, 33, 34, 64, 150}) {
      std::string piece;
      for (size_t i = 0; i < size_bytes; ++i) piece += static_cast<char>('a' + random() % 3);
      std::vector<int32_t> ids;
      model.Encode(piece, &ids);
      ASSERT_EQ(ids, EncodeByDefinition(merges, piece)) << piece;
    }
  }
}

TEST(Bpe, AppendsBehindWhatIsThere) {
  const BpeModel model({{'a', 'b', 256}}, IdentityByteIds());
  std::vector<int32_t> ids = {7};
  model.Encode("abab", &ids);
  EXPECT_EQ(ids, (std::vector<int32_t>{7, 256, 256}));
}

TEST(Bpe, WithoutMergesEveryByteIsAToken) {
  const BpeModel model({}, IdentityByteIds());
  std::vector<int32_t> ids;
  model.Encode(std::string(100, '\xFF'), &ids);
  EXPECT_EQ(ids, std::vector<int32_t>(100, 255));
}

// A quadratic encoder would need hours for this, beyond the time limit of the test runner.
TEST(Bpe, LongRunOfOneLetterIsNotQuadratic) {
  std::vector<BpeMerge> merges;
  int32_t last = 'a';
  for (int32_t i = 0; i < 10; ++i) {
    merges.push_back({last, last, 256 + i});
    last = 256 + i;
  }
  const BpeModel model(merges, IdentityByteIds());
  std::vector<int32_t> ids;
  model.Encode(std::string((1 << 20) + 1, 'a'), &ids);
  std::vector<int32_t> expected(1024, last);
  expected.push_back('a');
  EXPECT_EQ(ids, expected);
}

TEST(SingleTokenPieces, FindsWhatWasAddedAndNothingElse) {
  std::vector<std::string> words;
  for (int i = 0; i < 1000; ++i) {
    words.push_back(std::string(static_cast<size_t>(i % 32), 'x') + std::to_string(i));
    words.back().resize(std::min(words.back().size(), SingleTokenPieces::kMaxPieceBytes));
  }
  std::map<std::string, int32_t> distinct;
  SingleTokenPieces pieces(words.size());
  for (const std::string& word : words) {
    const auto id = static_cast<int32_t>(distinct.size());
    const auto [it, inserted] = distinct.emplace(word, id);
    if (inserted) pieces.Add(it->first, id);
  }
  for (const auto& [word, id] : distinct) EXPECT_EQ(pieces.Find(word), id);
  EXPECT_EQ(pieces.Find("y"), -1);
  EXPECT_EQ(pieces.Find("x"), -1);
}

}  // namespace
}  // namespace deepinfer
