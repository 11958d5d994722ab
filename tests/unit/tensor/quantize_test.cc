#include "tensor/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "support/source_dir.h"
#include "tensor/codecs.h"
#include "tensor/safetensors.h"

namespace deepinfer {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kMaxFloat = std::numeric_limits<float>::max();

// Equal as bits: tells -0 from +0 and one NaN from another.
::testing::AssertionResult SameBits(const std::vector<float>& actual,
                                    std::span<const float> expected) {
  if (actual.size() != expected.size()) return ::testing::AssertionFailure() << "sizes differ";
  for (size_t i = 0; i < actual.size(); ++i) {
    if (std::bit_cast<uint32_t>(actual[i]) != std::bit_cast<uint32_t>(expected[i])) {
      return ::testing::AssertionFailure()
             << "element " << i << ": " << actual[i] << " != " << expected[i];
    }
  }
  return ::testing::AssertionSuccess();
}

class GoldenVectors {
 public:
  explicit GoldenVectors(const std::string& name)
      : file_(SafetensorsFile::Open(SourceDir() + "/tests/data/golden/" + name)) {}

  template <typename T>
  std::vector<T> Read(std::string_view name) const {
    if (!file_.ok()) {
      ADD_FAILURE() << file_.status().ToString();
      return {};
    }
    const TensorView* view = file_->Find(name);
    if (view == nullptr || !view->As<T>().ok()) {
      ADD_FAILURE() << "golden tensor " << name << " is missing or of another type";
      return {};
    }
    const std::span<const T> values = *view->As<T>();
    return {values.begin(), values.end()};
  }

 private:
  Result<SafetensorsFile> file_;
};

// Rows that reach every scale: magnitudes from subnormal to huge, groups of zeros, mixed signs.
std::vector<float> RandomRow(uint32_t seed, int n) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> exponent(-140, 126);
  std::uniform_real_distribution<float> unit(-1.0f, 1.0f);
  std::vector<float> row(static_cast<size_t>(n));
  for (size_t i = 0; i < row.size(); i += 16) {
    const int group_exponent = exponent(random);
    for (size_t j = i; j < std::min(i + 16, row.size()); ++j) {
      row[j] = seed % 7 == 0 && i == 0 ? 0.0f : std::ldexp(unit(random), group_exponent);
    }
  }
  return row;
}

// The rules of model.md §11 with true divisions, powers from ldexp and scales found by search.
struct PlainGroup {
  double scale = 0;
  std::vector<double> values;
};

double RoundToGrid(double x, const std::vector<double>& grid) {
  const double magnitude = std::min(std::abs(x), grid.back());
  size_t best = 0;
  for (size_t code = 1; code < grid.size(); ++code) {
    const double distance = std::abs(grid[code] - magnitude);
    const double best_distance = std::abs(grid[best] - magnitude);
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) best = code;
  }
  return std::copysign(grid[best], x);
}

std::vector<double> E4m3Grid() { return {kE4m3Table.begin(), kE4m3Table.begin() + kE4m3Nan}; }

const std::vector<double> kE2m1Grid = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

float PlainAmax(const float* x, int n, float floor) {
  float amax = floor;
  for (int i = 0; i < n; ++i) amax = std::max(amax, std::abs(x[i]));
  return amax;
}

PlainGroup PlainPow2Group(const float* x, int n, float floor, float max_code,
                          const std::vector<double>& grid) {
  const float target = PlainAmax(x, n, floor) * (1.0f / max_code);
  int exponent = -149;
  while (std::ldexp(1.0, exponent) < static_cast<double>(target)) ++exponent;
  PlainGroup group;
  group.scale = std::ldexp(1.0, exponent);
  for (int i = 0; i < n; ++i) {
    const float scaled = x[i] / static_cast<float>(group.scale);
    group.values.push_back(RoundToGrid(static_cast<double>(scaled), grid));
  }
  return group;
}

PlainGroup PlainE4m3Group(const float* x, int n, bool by_reciprocal) {
  const float amax = PlainAmax(x, n, 6 * 0x1p-9f);
  PlainGroup group;
  group.scale = RoundToGrid(static_cast<double>(std::min(amax / 6.0f, 448.0f)), E4m3Grid());
  const float scale = static_cast<float>(group.scale);
  for (int i = 0; i < n; ++i) {
    const float scaled = by_reciprocal ? x[i] * (1.0f / scale) : x[i] / scale;
    group.values.push_back(RoundToGrid(static_cast<double>(scaled), kE2m1Grid));
  }
  return group;
}

uint8_t Nibble(const std::vector<uint8_t>& packed, size_t element) {
  const uint8_t byte = packed[element / 2];
  return static_cast<uint8_t>(element % 2 == 0 ? byte & 15 : byte >> 4);
}

TEST(QuantizeGoldenTest, Fp8Group32) {
  const GoldenVectors golden("unit_vectors.safetensors");
  std::vector<float> x = golden.Read<float>("x");
  const int n = static_cast<int>(x.size());
  ASSERT_EQ(n, 64 * 64);
  std::vector<uint8_t> codes(x.size());
  std::vector<uint8_t> scales(x.size() / 32);
  QuantizeFp8Group32(x.data(), n, codes.data(), scales.data());
  EXPECT_EQ(codes, golden.Read<uint8_t>("fp8_codes"));
  EXPECT_EQ(scales, golden.Read<uint8_t>("fp8_scales"));

  const std::vector<float> expected = golden.Read<float>("fp8_b32_ue8m0");
  std::vector<float> values(x.size());
  DequantizeFp8Group32(codes.data(), scales.data(), n, values.data());
  EXPECT_TRUE(SameBits(values, expected));
  Fp8Group32QdqInPlace(x.data(), n);
  EXPECT_TRUE(SameBits(x, expected));
}

TEST(QuantizeGoldenTest, Fp4Group32) {
  const GoldenVectors golden("unit_vectors.safetensors");
  std::vector<float> x = golden.Read<float>("x");
  const int n = static_cast<int>(x.size());
  ASSERT_EQ(n, 64 * 64);
  std::vector<uint8_t> packed(x.size() / 2);
  std::vector<uint8_t> scales(x.size() / 32);
  QuantizeFp4Group32(x.data(), n, packed.data(), scales.data());
  EXPECT_EQ(packed, golden.Read<uint8_t>("fp4_b32_codes_packed"));
  EXPECT_EQ(scales, golden.Read<uint8_t>("fp4_b32_scales"));

  const std::vector<float> expected = golden.Read<float>("fp4_b32_ue8m0");
  std::vector<float> values(x.size());
  DequantizeFp4Group32(packed.data(), scales.data(), n, values.data());
  EXPECT_TRUE(SameBits(values, expected));
  Fp4Group32QdqInPlace(x.data(), n);
  EXPECT_TRUE(SameBits(x, expected));
}

TEST(QuantizeGoldenTest, Fp4Group16InBothForms) {
  const GoldenVectors golden("unit_vectors.safetensors");
  const std::vector<float> x = golden.Read<float>("x");
  const std::vector<float> expected = golden.Read<float>("fp4_b16_e4m3");
  for (const bool by_reciprocal : {false, true}) {
    std::vector<float> values = x;
    Fp4Group16QdqInPlace(values.data(), static_cast<int>(values.size()), by_reciprocal);
    EXPECT_TRUE(SameBits(values, expected)) << "by_reciprocal " << by_reciprocal;
  }
}

TEST(QuantizeGoldenTest, Fp4Group16TiesInReciprocalForm) {
  const GoldenVectors golden("unit_vectors2.safetensors");
  const std::vector<float> x = golden.Read<float>("fp4_tie_x");
  const int n = static_cast<int>(x.size());
  ASSERT_EQ(n, 11 * 16);
  std::vector<uint8_t> packed(x.size() / 2);
  std::vector<uint8_t> scales(x.size() / 16);
  QuantizeFp4Group16(x.data(), n, true, packed.data(), scales.data());
  std::vector<float> values(x.size());
  DequantizeFp4Group16(packed.data(), scales.data(), n, values.data());
  EXPECT_TRUE(SameBits(values, golden.Read<float>("fp4_tie_b16_e4m3")));

  const std::vector<float> expected_scales = golden.Read<float>("fp4_tie_scale");
  ASSERT_EQ(scales.size(), expected_scales.size());
  for (size_t i = 0; i < scales.size(); ++i) EXPECT_EQ(E4m3ToFloat(scales[i]), expected_scales[i]);

  std::vector<float> divided = x;
  Fp4Group16QdqInPlace(divided.data(), n, false);
  EXPECT_FALSE(SameBits(divided, values)) << "these vectors must tell the two forms apart";
}

TEST(QuantizeGoldenTest, E4m3Table) {
  const std::vector<float> table =
      GoldenVectors("unit_vectors.safetensors").Read<float>("e4m3_table");
  ASSERT_EQ(table.size(), 256u);
  for (size_t code = 0; code < table.size(); ++code) {
    if ((code & 0x7F) == 0x7F) continue;  // NaN in the format, whatever the file stores
    EXPECT_EQ(std::bit_cast<uint32_t>(table[code]), std::bit_cast<uint32_t>(kE4m3Table[code]));
  }
}

// numerics.md §4.1: scales with mantissa 1.875 are where division and reciprocal part.
TEST(Fp4Group16Test, ReciprocalRoundsExactTiesUpAtScaleMantissa1875) {
  for (const float scale : {0.9375f, 1.875f, 15.0f}) {
    for (const float sign : {1.0f, -1.0f}) {
      const float ratios[6] = {1.25f, 2.5f, 5.0f, 0.75f, 1.75f, 3.5f};
      const uint8_t divided_codes[6] = {2, 4, 6, 2, 4, 6};
      const uint8_t reciprocal_codes[6] = {3, 5, 7, 2, 4, 6};
      std::vector<float> x(16, 0.0f);
      for (size_t i = 0; i < 6; ++i) x[i] = sign * ratios[i] * scale;
      x[15] = 6 * scale;
      for (const bool by_reciprocal : {false, true}) {
        std::vector<uint8_t> packed(8);
        uint8_t scale_code = 0;
        QuantizeFp4Group16(x.data(), 16, by_reciprocal, packed.data(), &scale_code);
        ASSERT_EQ(E4m3ToFloat(scale_code), scale);
        for (size_t i = 0; i < 6; ++i) {
          const int code = by_reciprocal ? reciprocal_codes[i] : divided_codes[i];
          EXPECT_EQ(Nibble(packed, i), sign < 0 ? code | 8 : code)
              << "scale " << scale << " ratio " << ratios[i] << " reciprocal " << by_reciprocal;
        }
      }
    }
  }
}

TEST(Fp4Group16Test, SubnormalScaleIsNotIdempotent) {
  std::vector<float> x(16, 0.0f);
  x[3] = 9 * 0x1p-9f;  // amax / 6 = 1.5 * 2^-9, a tie that goes to 2 * 2^-9
  std::vector<uint8_t> packed(8);
  uint8_t scale = 0;
  QuantizeFp4Group16(x.data(), 16, false, packed.data(), &scale);
  EXPECT_EQ(scale, 2);
  EXPECT_EQ(E2m1ToFloat(Nibble(packed, 3)), 4.0f);
  DequantizeFp4Group16(packed.data(), &scale, 16, x.data());
  QuantizeFp4Group16(x.data(), 16, false, packed.data(), &scale);
  EXPECT_EQ(scale, 1);
}

TEST(Fp4Group16Test, ScaleSaturatesAndHasAFloor) {
  std::vector<float> x(32, 0.0f);
  x[0] = 1e30f;
  x[1] = -2700.0f;
  std::vector<uint8_t> packed(16);
  std::vector<uint8_t> scales(2);
  for (const bool by_reciprocal : {false, true}) {
    QuantizeFp4Group16(x.data(), 32, by_reciprocal, packed.data(), scales.data());
    EXPECT_EQ(E4m3ToFloat(scales[0]), 448.0f);
    EXPECT_EQ(Nibble(packed, 0), 7);
    EXPECT_EQ(Nibble(packed, 1), 15);
    EXPECT_EQ(E4m3ToFloat(scales[1]), 0x1p-9f) << "a group of zeros";
  }
}

TEST(QuantizeTest, EvenElementsAreInLowNibbles) {
  std::vector<float> x(32, 0.0f);
  x[0] = 6.0f;
  x[1] = -1.0f;
  std::vector<uint8_t> packed(16);
  std::vector<uint8_t> scales(2);
  QuantizeFp4Group32(x.data(), 32, packed.data(), scales.data());
  EXPECT_EQ(scales[0], 127);
  EXPECT_EQ(packed[0], 0xA7);
  QuantizeFp4Group16(x.data(), 32, false, packed.data(), scales.data());
  EXPECT_EQ(packed[0], 0xA7);
}

TEST(QuantizeTest, ZeroGroupsKeepSignsAndUseTheFloors) {
  std::vector<float> x(32, 0.0f);
  x[5] = -0.0f;
  std::vector<uint8_t> codes(32);
  uint8_t scale = 0;
  QuantizeFp8Group32(x.data(), 32, codes.data(), &scale);
  EXPECT_EQ(scale, 127 - 22);  // 1e-4 / 448 = 2.2e-7, below 2^-22
  EXPECT_EQ(codes[5], 0x80);
  EXPECT_EQ(codes[4], 0x00);
  QuantizeFp4Group32(x.data(), 32, codes.data(), &scale);
  EXPECT_EQ(scale, 1);  // 2^-126
  EXPECT_EQ(Nibble(codes, 5), 8);
}

TEST(QuantizeTest, Pow2ScaleStepsAtExactMultiplesOfTheCodeMaximum) {
  std::vector<float> x(32, 0.0f);
  std::vector<uint8_t> codes(32);
  uint8_t scale = 0;
  for (const int exponent : {-10, 0, 10}) {
    x[0] = std::ldexp(448.0f, exponent);
    QuantizeFp8Group32(x.data(), 32, codes.data(), &scale);
    EXPECT_EQ(scale, 127 + exponent);
    EXPECT_EQ(codes[0], 0x7E);
    x[0] = std::ldexp(6.0f, exponent);
    QuantizeFp4Group32(x.data(), 32, codes.data(), &scale);
    EXPECT_EQ(scale, 127 + exponent);
    x[0] = std::ldexp(448.5f, exponent);
    QuantizeFp8Group32(x.data(), 32, codes.data(), &scale);
    EXPECT_EQ(scale, 127 + exponent + 1);
  }
}

// Group g of a row against the plain rules; value_of(i) is the decoded code of element i.
template <typename ValueOf>
void ExpectGroup(const PlainGroup& plain, size_t first, double scale, ValueOf value_of) {
  ASSERT_EQ(scale, plain.scale);
  for (size_t i = 0; i < plain.values.size(); ++i) {
    const double value = value_of(first + i);
    ASSERT_EQ(value, plain.values[i]) << "element " << first + i;
    ASSERT_EQ(std::signbit(value), std::signbit(plain.values[i])) << "element " << first + i;
  }
}

constexpr size_t kRowSize = 192;
constexpr uint32_t kNumRows = 300;

TEST(QuantizeTest, Fp8Group32AgreesWithThePlainRules) {
  const std::vector<double> grid = E4m3Grid();
  for (uint32_t seed = 0; seed < kNumRows; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const std::vector<float> x = RandomRow(seed, kRowSize);
    std::vector<uint8_t> codes(kRowSize);
    std::vector<uint8_t> scales(kRowSize / 32);
    QuantizeFp8Group32(x.data(), kRowSize, codes.data(), scales.data());
    for (size_t first = 0; first < kRowSize; first += 32) {
      ExpectGroup(PlainPow2Group(&x[first], 32, 1e-4f, 448, grid), first,
                  E8m0ToFloat(scales[first / 32]), [&](size_t i) { return E4m3ToFloat(codes[i]); });
    }
  }
}

TEST(QuantizeTest, Fp4Group32AgreesWithThePlainRules) {
  for (uint32_t seed = 0; seed < kNumRows; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const std::vector<float> x = RandomRow(seed, kRowSize);
    std::vector<uint8_t> packed(kRowSize / 2);
    std::vector<uint8_t> scales(kRowSize / 32);
    QuantizeFp4Group32(x.data(), kRowSize, packed.data(), scales.data());
    for (size_t first = 0; first < kRowSize; first += 32) {
      ExpectGroup(PlainPow2Group(&x[first], 32, 6 * 0x1p-126f, 6, kE2m1Grid), first,
                  E8m0ToFloat(scales[first / 32]),
                  [&](size_t i) { return E2m1ToFloat(Nibble(packed, i)); });
    }
  }
}

TEST(QuantizeTest, Fp4Group16AgreesWithThePlainRulesInBothForms) {
  for (uint32_t seed = 0; seed < 2 * kNumRows; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const bool by_reciprocal = seed % 2 != 0;
    const std::vector<float> x = RandomRow(seed, kRowSize);
    std::vector<uint8_t> packed(kRowSize / 2);
    std::vector<uint8_t> scales(kRowSize / 16);
    QuantizeFp4Group16(x.data(), kRowSize, by_reciprocal, packed.data(), scales.data());
    for (size_t first = 0; first < kRowSize; first += 16) {
      ExpectGroup(PlainE4m3Group(&x[first], 16, by_reciprocal), first,
                  E4m3ToFloat(scales[first / 16]),
                  [&](size_t i) { return E2m1ToFloat(Nibble(packed, i)); });
    }
  }
}

TEST(QuantizeTest, InPlaceFormsEqualQuantiseThenDequantise) {
  constexpr int kN = 128;
  for (uint32_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const std::vector<float> x = RandomRow(seed, kN);
    std::vector<uint8_t> codes(kN);
    std::vector<uint8_t> scales(kN / 16);
    std::vector<float> expected(kN);
    std::vector<float> actual = x;

    QuantizeFp8Group32(x.data(), kN, codes.data(), scales.data());
    DequantizeFp8Group32(codes.data(), scales.data(), kN, expected.data());
    Fp8Group32QdqInPlace(actual.data(), kN);
    EXPECT_TRUE(SameBits(actual, expected));
    Fp8Group32QdqInPlace(actual.data(), kN);
    EXPECT_TRUE(SameBits(actual, expected)) << "FP8 with a power-of-two scale is idempotent";

    QuantizeFp4Group32(x.data(), kN, codes.data(), scales.data());
    DequantizeFp4Group32(codes.data(), scales.data(), kN, expected.data());
    actual = x;
    Fp4Group32QdqInPlace(actual.data(), kN);
    EXPECT_TRUE(SameBits(actual, expected));

    QuantizeFp4Group16(x.data(), kN, true, codes.data(), scales.data());
    DequantizeFp4Group16(codes.data(), scales.data(), kN, expected.data());
    actual = x;
    Fp4Group16QdqInPlace(actual.data(), kN, true);
    EXPECT_TRUE(SameBits(actual, expected));
  }
}

TEST(QuantizeTest, NonFiniteGroupsBecomeNanAndLeaveNeighboursAlone) {
  for (const float bad : {kNan, kInf, -kInf}) {
    std::vector<float> x(96, 1.0f);
    x[40] = bad;
    std::vector<float> fp8 = x;
    std::vector<float> fp4_wide = x;
    std::vector<float> fp4_narrow = x;
    Fp8Group32QdqInPlace(fp8.data(), 96);
    Fp4Group32QdqInPlace(fp4_wide.data(), 96);
    Fp4Group16QdqInPlace(fp4_narrow.data(), 96, true);
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_EQ(std::isnan(fp8[i]), i / 32 == 1) << i;
      EXPECT_EQ(std::isnan(fp4_wide[i]), i / 32 == 1) << i;
      EXPECT_EQ(std::isnan(fp4_narrow[i]), i / 16 == 2) << i;
    }
    std::vector<uint8_t> codes(96);
    std::vector<uint8_t> scales(6);
    QuantizeFp8Group32(x.data(), 96, codes.data(), scales.data());
    EXPECT_EQ(scales[1], kE8m0Nan);
    QuantizeFp4Group16(x.data(), 96, false, codes.data(), scales.data());
    EXPECT_EQ(scales[2], kE4m3Nan);
  }
}

TEST(QuantizeTest, LargestFloatsAreDefined) {
  std::vector<float> x(32, kMaxFloat);
  std::vector<uint8_t> codes(32);
  uint8_t scale = 0;
  QuantizeFp8Group32(x.data(), 32, codes.data(), &scale);
  EXPECT_EQ(scale, 127 + 120);
  EXPECT_EQ(E4m3ToFloat(codes[0]), 256.0f);
  QuantizeFp4Group32(x.data(), 32, codes.data(), &scale);
  EXPECT_EQ(scale, 127 + 126);
  EXPECT_EQ(E2m1ToFloat(Nibble(codes, 0)), 4.0f);
}

TEST(QuantizeTest, EmptyRowsTouchNothing) {
  QuantizeFp8Group32(nullptr, 0, nullptr, nullptr);
  QuantizeFp4Group32(nullptr, 0, nullptr, nullptr);
  QuantizeFp4Group16(nullptr, 0, false, nullptr, nullptr);
  Fp8Group32QdqInPlace(nullptr, 0);
}

TEST(QuantizeDeathTest, PartialGroupsAreABrokenInvariant) {
  std::vector<float> x(48, 0.0f);
  EXPECT_DEATH(Fp8Group32QdqInPlace(x.data(), 33), "kFp8GroupSize");
  EXPECT_DEATH(Fp4Group32QdqInPlace(x.data(), 48), "kFp4WideGroupSize");
}

}  // namespace
}  // namespace deepinfer
