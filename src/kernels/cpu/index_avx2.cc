#include "kernels/cpu/index_kernels.h"
#include "kernels/cpu/isa_avx2.h"
#include "kernels/cpu/levels.h"

namespace deepinfer {

void FillIndexAvx2(IndexKernels* kernels) { FillIndex<Avx2>(kernels); }

}  // namespace deepinfer
