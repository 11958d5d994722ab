// The Lane16 reductions of numerics.md §7 in scalar form: 16 partial sums, lane j takes
// k = j (mod 16) ascending, then a tree over distances 8, 4, 2, 1.
// Thread rule: pure functions.
#pragma once

#include <cmath>
#include <cstdint>

namespace deepinfer {

inline float ReduceLanes(float (&lane)[16]) {
  for (int distance = 8; distance >= 1; distance /= 2) {
    for (int j = 0; j < distance; ++j) lane[j] += lane[j + distance];
  }
  return lane[0];
}

// sum of a[k]·b[k] with fma.
inline float Lane16Dot(const float* a, const float* b, int64_t n) {
  float lane[16] = {};
  for (int64_t k = 0; k < n; ++k) lane[k & 15] = std::fma(a[k], b[k], lane[k & 15]);
  return ReduceLanes(lane);
}

// sum of a[k].
inline float Lane16Sum(const float* a, int64_t n) {
  float lane[16] = {};
  for (int64_t k = 0; k < n; ++k) lane[k & 15] += a[k];
  return ReduceLanes(lane);
}

}  // namespace deepinfer
