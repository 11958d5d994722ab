#include "kernels/cpu/selection.h"

#include <array>
#include <bit>

namespace deepinfer {

namespace {

constexpr uint32_t kSignBit = 0x80000000u;

// Ascending with the value; equal for both zeros.
uint32_t SortKey(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value + 0.0f);
  return (bits & kSignBit) != 0 ? ~bits : bits | kSignBit;
}

float ValueOf(uint32_t key) {
  return std::bit_cast<float>((key & kSignBit) != 0 ? key & ~kSignBit : ~key);
}

// The k-th largest key, found digit by digit; *num_equal = how many of its equals are among the k
// largest.
uint32_t KthLargestKey(const float* values, int64_t count, int64_t k, int64_t* num_equal) {
  uint32_t prefix = 0, mask = 0;
  int64_t left = k;
  for (int shift = 24; shift >= 0; shift -= 8) {
    std::array<int32_t, 256> histogram{};
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t key = SortKey(values[i]);
      histogram[(key >> shift) & 255] += (key & mask) == prefix ? 1 : 0;
    }
    uint32_t digit = 255;
    for (; histogram[digit] < left; --digit) left -= histogram[digit];
    prefix |= digit << shift;
    mask |= uint32_t{255} << shift;
  }
  *num_equal = left;
  return prefix;
}

}  // namespace

void KeepBest(int64_t k, BestList* list) {
  if (list->count <= k) return;
  int64_t num_equal = 0;
  const uint32_t last = KthLargestKey(list->values, list->count, k, &num_equal);
  int64_t kept = 0;
  for (int64_t i = 0; i < list->count; ++i) {
    const uint32_t key = SortKey(list->values[i]);
    const bool is_equal = key == last && num_equal > 0;
    if (key <= last && !is_equal) continue;
    num_equal -= is_equal ? 1 : 0;
    list->values[kept] = list->values[i];
    list->indices[kept++] = list->indices[i];
  }
  list->count = kept;
  list->threshold = ValueOf(last);
}

}  // namespace deepinfer
