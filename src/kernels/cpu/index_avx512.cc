#include "kernels/cpu/index_kernels.h"
#include "kernels/cpu/isa_avx512.h"
#include "kernels/cpu/levels.h"

namespace deepinfer {

void FillIndexAvx512(IndexKernels* kernels) { FillIndex<Avx512>(kernels); }

}  // namespace deepinfer
