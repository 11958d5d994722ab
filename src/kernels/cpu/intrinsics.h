// The compiler's vector intrinsics, or a portable model of them: tests compile the AVX-512 kernels
// a second time with DEEPINFER_SIMULATE_AVX512, so that those levels are checked on every machine.
// Thread rule: pure functions.
#pragma once

#include <immintrin.h>
