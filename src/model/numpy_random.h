// The part of numpy.random.default_rng that Engram multipliers come from: SeedSequence, PCG64
// (XSL-RR) and bounded 64-bit integers by multiplication (Lemire's method).
// Thread rule: one owner.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deepinfer {

class NumpyRandom {
 public:
  explicit NumpyRandom(uint64_t seed);

  // The next value of integers(0, bound), dtype int64; bound > 2^32, as Engram bounds are.
  uint64_t Below(uint64_t bound);

 private:
  __extension__ using Uint128 = unsigned __int128;
  uint64_t Next();

  Uint128 state_ = 0;
  Uint128 increment_ = 0;
};

}  // namespace deepinfer
