#include "kernels/reference/reference_operators.h"

#include <cfloat>
#include <cstdlib>
#include <cstring>

#include "base/memory_pages.h"

namespace deepinfer {

std::byte* ReferenceOperators::Allocate(int64_t size_bytes) {
  return AllocateLargeMemory(size_bytes);
}

void ReferenceOperators::Free(std::byte* memory) { std::free(memory); }

void ReferenceOperators::CopyToDevice(void* dst, const void* src, int64_t size_bytes) {
  if (size_bytes > 0) std::memcpy(dst, src, static_cast<size_t>(size_bytes));
}

void ReferenceOperators::CopyToHost(void* dst, const void* src, int64_t size_bytes) {
  if (size_bytes > 0) std::memcpy(dst, src, static_cast<size_t>(size_bytes));
}

void ReferenceOperators::CopyOnDevice(void* dst, const void* src, int64_t size_bytes) {
  if (size_bytes > 0) std::memcpy(dst, src, static_cast<size_t>(size_bytes));
}

void ReferenceOperators::Scale(int64_t count, float factor, float* x) {
  for (int64_t i = 0; i < count; ++i) x[i] *= factor;
}

bool ReferenceOperators::AllFinite(int64_t count, const float* x) {
  // x - x is 0 for finite values and NaN otherwise; a NaN survives the sum.
  float acc = 0.0f;
  for (int64_t i = 0; i < count; ++i) acc += x[i] - x[i];
  return acc == 0.0f;
}

bool ReferenceOperators::ScoresFinite(int64_t count, const float* scores) {
  bool finite = true;
  for (int64_t i = 0; i < count; ++i) finite &= scores[i] <= FLT_MAX;
  return finite;
}

}  // namespace deepinfer
