#include "model/numpy_random.h"

#include <array>
#include <cstddef>

#include "base/check.h"

namespace deepinfer {

namespace {

// Constants of SeedSequence's hash and mix steps.
constexpr uint32_t kInitA = 0x43b0d7e5, kMultA = 0x931e8875;
constexpr uint32_t kInitB = 0x8b51f9dd, kMultB = 0x58f38ded;
constexpr uint32_t kMixLeft = 0xca01f9dd, kMixRight = 0x4973f715;
constexpr int kPoolSize = 4;

class SeedPool {
 public:
  explicit SeedPool(uint64_t entropy) {
    const std::array<uint32_t, 2> words = {static_cast<uint32_t>(entropy),
                                           static_cast<uint32_t>(entropy >> 32)};
    // A high word of 0 is no entropy word, and absent words hash as 0: the result is the same.
    for (std::size_t i = 0; i < kPoolSize; ++i) pool_[i] = Hash(i < words.size() ? words[i] : 0);
    for (std::size_t src = 0; src < kPoolSize; ++src) {
      for (std::size_t dst = 0; dst < kPoolSize; ++dst) {
        if (src != dst) pool_[dst] = Mix(pool_[dst], Hash(pool_[src]));
      }
    }
  }

  std::array<uint64_t, 4> Generate() const {
    std::array<uint32_t, 8> out{};
    uint32_t constant = kInitB;
    for (std::size_t i = 0; i < out.size(); ++i) {
      uint32_t v = pool_[i % kPoolSize] ^ constant;
      constant *= kMultB;
      v *= constant;
      out[i] = v ^ (v >> 16);
    }
    std::array<uint64_t, 4> words{};
    for (std::size_t i = 0; i < words.size(); ++i) {
      words[i] = uint64_t{out[2 * i]} | (uint64_t{out[2 * i + 1]} << 32);
    }
    return words;
  }

 private:
  uint32_t Hash(uint32_t v) {
    v ^= constant_;
    constant_ *= kMultA;
    v *= constant_;
    return v ^ (v >> 16);
  }
  static uint32_t Mix(uint32_t x, uint32_t y) {
    const uint32_t v = kMixLeft * x - kMixRight * y;
    return v ^ (v >> 16);
  }

  std::array<uint32_t, kPoolSize> pool_{};
  uint32_t constant_ = kInitA;
};

}  // namespace

NumpyRandom::NumpyRandom(uint64_t seed) {
  const auto words = SeedPool(seed).Generate();
  const Uint128 state = (Uint128{words[0]} << 64) | words[1];
  const Uint128 stream = (Uint128{words[2]} << 64) | words[3];
  increment_ = (stream << 1) | 1;
  Next();
  state_ += state;
  Next();
}

uint64_t NumpyRandom::Next() {
  constexpr Uint128 kMultiplier = (Uint128{0x2360ed051fc65da4ULL} << 64) | 0x4385df649fccf645ULL;
  state_ = state_ * kMultiplier + increment_;
  const uint64_t folded = static_cast<uint64_t>(state_ >> 64) ^ static_cast<uint64_t>(state_);
  const unsigned rotation = static_cast<unsigned>(state_ >> 122);
  return (folded >> rotation) | (folded << ((64 - rotation) & 63));
}

uint64_t NumpyRandom::Below(uint64_t bound) {
  DI_CHECK(bound > UINT32_MAX);  // smaller bounds use a buffered 32-bit path in numpy
  Uint128 product = Uint128{Next()} * bound;
  if (static_cast<uint64_t>(product) < bound) {
    const uint64_t threshold = (0 - bound) % bound;
    while (static_cast<uint64_t>(product) < threshold) product = Uint128{Next()} * bound;
  }
  return static_cast<uint64_t>(product >> 64);
}

}  // namespace deepinfer
