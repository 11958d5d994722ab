// Scope in which denormal inputs count as zero and denormal results become zero, as vdpbf16ps
// always does. Used by the bf16dot family where the instruction itself is not.
// Thread rule: changes the calling thread's MXCSR until the end of the scope. Arithmetic inside
// must sit in a function that is not inlined here: the compiler does not order it against MXCSR.
#pragma once

#include <immintrin.h>

namespace deepinfer {

class FlushDenormalsScope {
 public:
  FlushDenormalsScope() : saved_(_mm_getcsr()) {
    constexpr unsigned kFlushToZero = 0x8000;
    constexpr unsigned kDenormalsAreZero = 0x0040;
    _mm_setcsr(saved_ | kFlushToZero | kDenormalsAreZero);
  }
  ~FlushDenormalsScope() { _mm_setcsr(saved_); }
  FlushDenormalsScope(const FlushDenormalsScope&) = delete;
  FlushDenormalsScope& operator=(const FlushDenormalsScope&) = delete;

 private:
  unsigned saved_;
};

}  // namespace deepinfer
