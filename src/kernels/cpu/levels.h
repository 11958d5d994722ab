// Fillers of the kernel tables, one for each operator family and instruction-set level.
// Thread rule: pure functions.
#pragma once

#include "kernels/cpu/kernel_table.h"

namespace deepinfer {

void FillLinearAvx2(LinearKernels* kernels);
void FillLinearAvx512(LinearKernels* kernels);
void FillLinearAvx512Bf16(LinearKernels* kernels);

void FillRowAvx2(RowKernels* kernels);
void FillRowAvx512(RowKernels* kernels);

void FillAttentionAvx2(AttentionKernels* kernels);
void FillAttentionAvx512(AttentionKernels* kernels);
void FillAttentionAvx512Bf16(AttentionKernels* kernels);

void FillIndexAvx2(IndexKernels* kernels);
void FillIndexAvx512(IndexKernels* kernels);

}  // namespace deepinfer
