// Random operands and bit comparisons for the operator tests.
// Thread rule: plain values, one thread.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/cpu_features.h"
#include "base/thread_pool.h"
#include "kernels/backends.h"
#include "kernels/ops.h"
#include "tensor/codecs.h"
#include "tensor/quantize.h"

namespace deepinfer::test {

// SplitMix64: equal sequences on every platform.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Bits() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  int64_t Below(int64_t n) { return static_cast<int64_t>(Bits() % static_cast<uint64_t>(n)); }
  // In (-1, 1).
  float Uniform() {
    return static_cast<float>(static_cast<int64_t>(Bits() >> 40) - (1 << 23)) * 0x1p-23f;
  }
  // Values of very different magnitudes.
  float Spread() { return std::ldexp(Uniform(), static_cast<int>(Below(12)) - 8); }

 private:
  uint64_t state_;
};

inline std::vector<float> RandomFloats(int64_t n, uint64_t seed) {
  Random random(seed);
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = random.Spread();
  return v;
}

inline void RoundToBf16InPlace(std::vector<float>* v) {
  for (float& x : *v) x = RoundToBf16(x);
}

// Memory that starts one element behind a cache line, so that a kernel that assumes more alignment
// than an element has shows.
class OffsetBytes {
 public:
  OffsetBytes(int64_t size, int64_t element_bytes)
      : bytes_(static_cast<size_t>(size) + 128), offset_(static_cast<size_t>(element_bytes)) {}
  uint8_t* data() {
    const auto address = reinterpret_cast<uintptr_t>(bytes_.data());
    return bytes_.data() + (64 - address % 64) % 64 + offset_;
  }

 private:
  std::vector<uint8_t> bytes_;
  size_t offset_;
};

// What the scale bytes of a random weight are.
enum class ScaleKind {
  kUsual,    // products near 1
  kTiny,     // products below and above the smallest normal number
  kExtreme,  // ends of the range and NaN
};

inline uint8_t RandomScale(ScaleKind kind, Random* random) {
  constexpr uint8_t kEnds[] = {0, 1, 2, 3, 127, 251, 252, 253, 254, 255};
  switch (kind) {
    case ScaleKind::kUsual:
      return static_cast<uint8_t>(120 + random->Below(8));
    case ScaleKind::kTiny:
      return static_cast<uint8_t>(56 + random->Below(8));
    case ScaleKind::kExtreme:
      return kEnds[random->Below(std::size(kEnds))];
  }
  return 127;
}

struct OwnedWeight {
  OwnedWeight(WeightFormat format, int64_t out, int64_t in, uint64_t seed,
              ScaleKind kind = ScaleKind::kUsual)
      : data(DataBytes(format, out, in), format == WeightFormat::kF32    ? 4
                                         : format == WeightFormat::kBf16 ? 2
                                                                         : 1),
        scales(static_cast<size_t>(out * ((in + 31) / 32))) {
    Random random(seed);
    uint8_t* bytes = data.data();
    for (int64_t i = 0; i < DataBytes(format, out, in); ++i) {
      bytes[i] = static_cast<uint8_t>(random.Bits());
      // A NaN code only where everything is allowed.
      if (format == WeightFormat::kFp8Block32 && kind != ScaleKind::kExtreme &&
          (bytes[i] & 0x7F) == 0x7F) {
        bytes[i] = 0;
      }
    }
    for (int64_t i = 0; i < out * in; ++i) {
      const float value =
          kind == ScaleKind::kTiny ? std::ldexp(random.Uniform(), -66) : random.Spread();
      if (format == WeightFormat::kF32) std::memcpy(bytes + 4 * i, &value, 4);
      if (format == WeightFormat::kBf16) {
        const uint16_t half = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
        std::memcpy(bytes + 2 * i, &half, 2);
      }
    }
    for (uint8_t& s : scales) s = RandomScale(kind, &random);
    matrix = {format, out, in, bytes, scales.data()};
  }
  OwnedWeight(OwnedWeight&& other) noexcept
      : data(std::move(other.data)), scales(std::move(other.scales)), matrix(other.matrix) {}

  static int64_t DataBytes(WeightFormat format, int64_t out, int64_t in) {
    switch (format) {
      case WeightFormat::kF32:
        return 4 * out * in;
      case WeightFormat::kBf16:
        return 2 * out * in;
      case WeightFormat::kFp4Group32:
        return out * in / 2;
      default:
        return out * in;
    }
  }

  OffsetBytes data;
  std::vector<uint8_t> scales;
  WeightMatrix matrix;
};

struct OwnedFp8Rows {
  OwnedFp8Rows(int64_t rows, int64_t k, uint64_t seed)
      : codes(static_cast<size_t>(rows * k)), scales(static_cast<size_t>(rows * k / 32)) {
    const std::vector<float> x = RandomFloats(rows * k, seed);
    QuantizeFp8Group32(x.data(), static_cast<int>(rows * k), codes.data(), scales.data());
  }
  Fp8Rows view() const { return {codes.data(), scales.data()}; }

  std::vector<uint8_t> codes, scales;
};

// Every level above the reference that this CPU runs.
inline std::vector<IsaLevel> VectorLevels() {
  std::vector<IsaLevel> levels;
  for (IsaLevel level : {IsaLevel::kAvx2, IsaLevel::kAvx512, IsaLevel::kAvx512Bf16}) {
    if (level <= DetectIsaLevel()) levels.push_back(level);
  }
  return levels;
}

// Calls fn(operators) for every level and number of threads, with a trace that names them.
template <typename Fn>
void ForEachBackend(int max_threads, Fn&& fn) {
  for (int threads = 1; threads <= max_threads; ++threads) {
    ThreadPool pool(threads);
    for (IsaLevel level : VectorLevels()) {
      SCOPED_TRACE(std::string(IsaLevelName(level)) + ", threads " + std::to_string(threads));
      auto ops = MakeCpuOperators(level, &pool);
      ASSERT_TRUE(ops.ok());
      fn(**ops);
    }
  }
}

// Guards a comparison against passing on nothing: finite values that are not all zero.
inline void ExpectMeaningful(const std::vector<float>& v) {
  bool any = v.empty(), finite = true;
  for (float x : v) {
    any = any || x != 0.0f;
    finite = finite && std::isfinite(x);
  }
  EXPECT_TRUE(any);
  EXPECT_TRUE(finite);
}

// Equal bits, any NaN equal to any other: which operand's payload survives is not promised.
inline ::testing::AssertionResult SameBits(const float* a, const float* b, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i])) {
      return ::testing::AssertionFailure() << "element " << i << ": " << a[i] << " and " << b[i];
    }
  }
  return ::testing::AssertionSuccess();
}
inline ::testing::AssertionResult SameBits(const std::vector<float>& a,
                                           const std::vector<float>& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << "sizes differ";
  return SameBits(a.data(), b.data(), static_cast<int64_t>(a.size()));
}

}  // namespace deepinfer::test
