#include "kernels/cpu/isa_avx512.h"
#include "kernels/cpu/levels.h"
#include "kernels/cpu/row_kernels.h"

namespace deepinfer {

void FillRowAvx512(RowKernels* kernels) { FillRows<Avx512>(kernels); }

}  // namespace deepinfer
