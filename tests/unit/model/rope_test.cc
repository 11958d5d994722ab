// Rotary frequencies and tables against the golden vectors (model.md §6.1).

#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>

#include "golden/golden_file.h"
#include "unit/model/model_test_data.h"

namespace deepinfer {
namespace {

// The golden values are angles taken back from an fp32 cosine and sine at position 1; the same
// detour makes ours comparable. An fp64 power without the intermediate rounding misses 10 of 32.
TEST(RopeTest, ReleasedFrequenciesGiveTheGoldenAngles) {
  const GoldenFile golden("unit_vectors");
  for (const bool compressed : {false, true}) {
    const std::vector<float> want =
        golden.Floats(compressed ? "real_rope_compress_angle1" : "real_rope_main_angle1");
    const std::vector<float> got = RopeFrequencies(ReleasedConfig(), compressed);
    ASSERT_EQ(got.size(), want.size());
    int unequal = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      const double angle = static_cast<double>(got[i]);
      const float cos = static_cast<float>(std::cos(angle));
      const float sin = static_cast<float>(std::sin(angle));
      unequal += static_cast<float>(std::atan2(double{sin}, double{cos})) != want[i];
      EXPECT_NEAR(got[i], want[i], 1.2e-7 * want[i]) << compressed << " pair " << i;
    }
    EXPECT_LE(unequal, 1) << compressed;
  }
}

TEST(RopeTest, YarnTurnsOnlyTheSlowPairs) {
  const ModelConfig c = ReleasedConfig();
  ModelConfig plain = c;
  plain.yarn.original_max_positions = 0;
  const std::vector<float> with = RopeFrequencies(c, true), without = RopeFrequencies(plain, true);
  for (size_t i = 0; i < with.size(); ++i) {
    if (i <= 15) {
      EXPECT_EQ(with[i], without[i]) << i;
    } else if (i >= 25) {
      EXPECT_EQ(with[i], without[i] / 16.0f) << i;
    } else {
      EXPECT_LT(with[i], without[i]) << i;
      EXPECT_GT(with[i], without[i] / 16.0f) << i;
    }
  }
}

TEST(RopeTest, TinyTablesMatch) {
  const GoldenFile golden("unit_vectors");
  const RopeTables tables(TinyConfig(), 512);
  const auto check = [&](const float* got, const std::string& name) {
    const std::vector<float> want = golden.Floats(name);
    ASSERT_EQ(want.size(), 512u * 8u);
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-6) << name << i;
  };
  ASSERT_EQ(tables.plain().rotary_dim, 16);
  ASSERT_EQ(tables.plain().max_positions, 512);
  check(tables.plain().cos, "rope_main_cos");
  check(tables.plain().sin, "rope_main_sin");
  check(tables.compressed().cos, "rope_compress_cos");
  check(tables.compressed().sin, "rope_compress_sin");
}

// The angle is an fp32 product; at far positions an fp64 angle would differ by whole radians'
// parts.
TEST(RopeTest, FarAnglesAreFp32Products) {
  const ModelConfig c = ReleasedConfig();
  constexpr int32_t kPositions = 1 << 20;
  ModelConfig narrow = c;
  narrow.rope_dim = 4;
  const std::vector<float> f = RopeFrequencies(narrow, false);
  const RopeTables tables(narrow, kPositions);
  for (int32_t p : {1, 500, 65537, 999999, kPositions - 1}) {
    for (size_t i = 0; i < 2; ++i) {
      const float angle = static_cast<float>(p) * f[i];
      const size_t at = static_cast<size_t>(p) * 2 + i;
      EXPECT_NEAR(tables.plain().cos[at], std::cos(static_cast<double>(angle)), 1e-7) << p;
      EXPECT_NEAR(tables.plain().sin[at], std::sin(static_cast<double>(angle)), 1e-7) << p;
    }
  }
}

}  // namespace
}  // namespace deepinfer
