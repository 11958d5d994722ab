// Engram constants and row ids (model.md §10.2).

#include "model/engram_hash.h"

#include <gtest/gtest.h>

#include <numeric>

#include "golden/golden_file.h"
#include "unit/model/model_test_data.h"

namespace deepinfer {
namespace {

std::vector<int64_t> Flatten(const std::vector<std::vector<std::vector<int64_t>>>& primes) {
  std::vector<int64_t> out;
  for (const auto& layer : primes) {
    for (const auto& row : layer) out.insert(out.end(), row.begin(), row.end());
  }
  return out;
}

std::vector<int32_t> TinyMap() { return GoldenFile("engram_constants").Ints("tiny.token_map"); }

TEST(EngramConstantsTest, PrimesEqualTheGoldenOnes) {
  const GoldenFile golden("engram_constants");
  EXPECT_EQ(Flatten(EngramPrimes(TinyConfig().engram)), golden.Get<int64_t>("tiny.primes"));
  EXPECT_EQ(Flatten(EngramPrimes(ReleasedConfig().engram)), golden.Get<int64_t>("real.primes"));
}

TEST(EngramConstantsTest, PrimesOfALayerFillItsTable) {
  for (const ModelConfig& c : {TinyConfig(), ReleasedConfig()}) {
    const auto primes = EngramPrimes(c.engram);
    for (size_t l = 0; l < primes.size(); ++l) {
      const std::vector<int64_t> row = Flatten({primes[l]});
      EXPECT_EQ(std::accumulate(row.begin(), row.end(), int64_t{0}), c.engram.num_embeddings[l]);
    }
  }
}

TEST(EngramConstantsTest, MultipliersEqualTheGoldenOnes) {
  const GoldenFile golden("engram_constants");
  const auto of = [](const ModelConfig& c) {
    std::vector<int64_t> out;
    for (int32_t layer : c.engram.layer_ids) {
      const auto m = EngramMultipliers(layer, c.engram.compressed_vocab_size, 4);
      out.insert(out.end(), m.begin(), m.end());
    }
    return out;
  };
  EXPECT_EQ(of(TinyConfig()), golden.Get<int64_t>("tiny.multipliers"));
  EXPECT_EQ(of(ReleasedConfig()), golden.Get<int64_t>("real.multipliers"));
}

// Values of numpy 2: default_rng(10007 * layer).integers(0, B, 4) * 2 + 1,
// B = (2**63 - 1) // classes // 2.
TEST(EngramConstantsTest, MultipliersFollowNumpyForOtherLayers) {
  using M = std::vector<int64_t>;
  EXPECT_EQ(EngramMultipliers(0, 424, 4),
            (M{13855977866482399, 5868734036897703, 891306733312495, 359529555115949}));
  EXPECT_EQ(EngramMultipliers(2, 6795, 4),
            (M{1115714229658983, 541000105853881, 330268539953259, 1041589654290277}));
  EXPECT_EQ(EngramMultipliers(3, 99092, 4),
            (M{27526976048817, 81659241234921, 10877931191531, 70296943813729}));
  EXPECT_EQ(EngramMultipliers(39, 99092, 4),
            (M{78783423298101, 66755978342133, 54001799726845, 83841824865251}));
  EXPECT_EQ(EngramMultipliers(1000, 99092, 4),
            (M{36181673634539, 79086439201969, 70119233547177, 68377294421417}));
  // Fewer look-backs are the first ones of the same stream.
  EXPECT_EQ(EngramMultipliers(39, 99092, 2), (M{78783423298101, 66755978342133}));
}

class EngramHasherTest : public ::testing::Test {
 protected:
  EngramHasherTest() : config_(TinyConfig()), hasher_(EngramHasher::Create(config_, TinyMap())) {}

  std::vector<int64_t> Ids(int32_t index, const std::vector<int32_t>& tokens,
                           const std::vector<uint8_t>& flags, int64_t start) const {
    const int64_t rows = static_cast<int64_t>(tokens.size()) - start;
    std::vector<int64_t> ids(static_cast<size_t>(rows * hasher_->num_columns()));
    hasher_->RowIds(index, tokens.data(), flags.empty() ? nullptr : flags.data(), start, rows,
                    ids.data());
    return ids;
  }

  // The rule in its own words, from the golden constants.
  std::vector<int64_t> PlainIds(int32_t index, const std::vector<int32_t>& tokens,
                                const std::vector<uint8_t>& flags, int64_t p) const {
    const GoldenFile golden("engram_constants");
    const auto m = golden.Get<int64_t>("tiny.multipliers");
    const auto primes = golden.Get<int64_t>("tiny.primes");
    const auto map = TinyMap();
    int64_t t[4];
    bool blocked = false;
    for (int64_t s = 0; s < 4; ++s) {
      if (p < s || (!flags.empty() && flags[static_cast<size_t>(p - s)] != 0)) blocked = true;
      const int32_t id = blocked ? 2 : tokens[static_cast<size_t>(p - s)];
      t[s] = map[static_cast<size_t>(id < 512 ? id : 2)];
    }
    std::vector<int64_t> ids;
    int64_t offset = 0;
    for (int64_t n = 2; n <= 4; ++n) {
      int64_t r = 0;
      for (int64_t s = 0; s < n; ++s) r ^= t[s] * m[static_cast<size_t>(index * 4 + s)];
      for (int64_t head = 0; head < 2; ++head) {
        const int64_t prime = primes[static_cast<size_t>(index * 6 + (n - 2) * 2 + head)];
        ids.push_back(r % prime + offset);
        offset += prime;
      }
    }
    return ids;
  }

  ModelConfig config_;
  Result<EngramHasher> hasher_;
};

TEST_F(EngramHasherTest, FollowsTheRuleWithImagesAndUnmappedIds) {
  ASSERT_TRUE(hasher_.ok());
  // 600 is no token of the map: it counts as pad, unlike the image flag it blocks nothing.
  const std::vector<int32_t> tokens = {7, 300, 5, 600, 9, 510, 510, 4, 8, 15, 16, 23, 2, 2, 42};
  const std::vector<uint8_t> flags = {0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0};
  for (int32_t index : {0, 1}) {
    for (const std::vector<uint8_t>& f : {flags, std::vector<uint8_t>{}}) {
      const std::vector<int64_t> ids = Ids(index, tokens, f, 0);
      for (int64_t p = 0; p < static_cast<int64_t>(tokens.size()); ++p) {
        const std::vector<int64_t> got(ids.begin() + p * 6, ids.begin() + (p + 1) * 6);
        EXPECT_EQ(got, PlainIds(index, tokens, f, p)) << index << " at " << p;
      }
    }
  }
}

TEST_F(EngramHasherTest, ALaterStartSeesTheRealHistory) {
  const std::vector<int32_t> tokens = {7, 300, 5, 6, 9, 10, 4, 8};
  const std::vector<int64_t> all = Ids(0, tokens, {}, 0);
  for (int64_t start = 1; start < 8; ++start) {
    const std::vector<int64_t> tail = Ids(0, tokens, {}, start);
    EXPECT_TRUE(std::equal(tail.begin(), tail.end(), all.begin() + start * 6)) << start;
  }
  EXPECT_TRUE(Ids(0, tokens, {}, 8).empty());
}

void ExpectError(const ModelConfig& config, std::vector<int32_t> map, const std::string& part) {
  const Result<EngramHasher> hasher = EngramHasher::Create(config, std::move(map));
  ASSERT_FALSE(hasher.ok()) << part;
  EXPECT_EQ(hasher.status().code(), StatusCode::kDataCorruption);
  EXPECT_NE(hasher.status().message().find(part), std::string::npos) << hasher.status().message();
}

TEST_F(EngramHasherTest, AForeignTokenMapIsRefused) {
  ExpectError(config_, {}, "engram_compressed_vocab_size");
  std::vector<int32_t> map = TinyMap();
  map.back() = 424;
  ExpectError(config_, map, "425 Engram token classes");
  map.back() = -1;
  ExpectError(config_, map, "negative");
  map = TinyMap();
  config_.engram.pad_token_id = static_cast<int32_t>(map.size());
  ExpectError(config_, map, "engram_pad_token_id");
}

TEST_F(EngramHasherTest, TableRowsThatArePrimesOfAnotherConfigurationAreRefused) {
  config_.engram.num_embeddings[1] += 1;
  ExpectError(config_, TinyMap(), "engram_num_embeddings says 1553");
  config_ = TinyConfig();
  config_.engram.vocab_size = 400;
  ExpectError(config_, TinyMap(), "Engram layer 1");
}

TEST_F(EngramHasherTest, AModelWithoutEngramNeedsNoMap) {
  config_.engram = {};
  EXPECT_TRUE(EngramHasher::Create(config_, {}).ok());
}

}  // namespace
}  // namespace deepinfer
