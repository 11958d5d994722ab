// The best of a long list of scores without sorting it: a scan keeps what is above the worst of
// the best so far, and the list is cut back whenever it is full (docs/numerics.md §1, rule 3).
// Thread rule: a list belongs to one task.
#pragma once

#include <cstdint>
#include <limits>

namespace deepinfer {

// Scores that are scanned between two looks at the room left.
inline constexpr int64_t kScanChunk = 2048;

// Candidates with their places, ascending. An element that is not above the threshold cannot be
// among the best. -infinity and NaN never are.
struct BestList {
  float* values = nullptr;
  int32_t* indices = nullptr;
  int64_t count = 0;
  float threshold = -std::numeric_limits<float>::infinity();
};

// Elements that the arrays of a list for the k best hold. Room for several times k keeps cuts rare.
inline constexpr int64_t BestListCapacity(int64_t k) { return 4 * k + kScanChunk; }

// Cuts the list to its k best, ties to the lower place, and raises the threshold to the worst.
void KeepBest(int64_t k, BestList* list);

}  // namespace deepinfer
