// Philox4x32-10, the only random number generator of sampling (numerics.md §5.1): every number is
// a pure function of (seed, absolute position, purpose, index).
// Thread rule: pure functions.
#pragma once

#include <array>
#include <cstdint>

namespace deepinfer {

using PhiloxBlock = std::array<uint32_t, 4>;

// What a random number decides; the counter word that separates the streams.
enum class RandomPurpose : uint32_t {
  kSample = 0,
  kAccept = 1,
  kResidual = 2,
  kDraft = 3,
  kRace = 4,
  kDerive = 5,
};

inline PhiloxBlock Philox4x32(PhiloxBlock counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// The block of (seed, absolute position of the token being decided, purpose, index).
inline PhiloxBlock RandomBlock(uint64_t seed, uint64_t position, RandomPurpose purpose,
                               uint32_t index) {
  return Philox4x32({static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32),
                     static_cast<uint32_t>(purpose), index},
                    {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

// X = word1·2^32 + word0.
inline uint64_t RandomBits(const PhiloxBlock& block) {
  return (uint64_t{block[1]} << 32) | block[0];
}

// U = ((X >> 12) + 0.5)·2^-52, in (0, 1).
inline double UniformFromBits(uint64_t x) { return (static_cast<double>(x >> 12) + 0.5) * 0x1p-52; }

// Seed of branch b of a request (choice b of n); branch 0 keeps the seed.
inline uint64_t DeriveSeed(uint64_t seed, uint32_t branch) {
  return branch == 0 ? seed : RandomBits(RandomBlock(seed, 0, RandomPurpose::kDerive, branch));
}

}  // namespace deepinfer
