#include "kernels/cpu/isa_avx2.h"
#include "kernels/cpu/levels.h"
#include "kernels/cpu/row_kernels.h"

namespace deepinfer {

void FillRowAvx2(RowKernels* kernels) { FillRows<Avx2>(kernels); }

}  // namespace deepinfer
