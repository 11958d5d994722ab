// The scalar end of a hyper-connection site, shared by the CPU backends.
// Thread rule: pure functions.
#pragma once

#include "kernels/ops.h"

namespace deepinfer {

// pre [n], post [n], comb [n, n] of one row from its mixes m [(2 + n)·n], which are already
// divided by the root mean square of the row (model.md §5); comb is the row softmax plus eps, on
// which the Sinkhorn iterations start.
void StartHcRow(const float* m, const HcSite& site, const HcShape& shape, float* pre, float* post,
                float* comb);

// The Sinkhorn iterations on comb [n, n], in place.
void RunSinkhorn(const HcShape& shape, float* comb);

}  // namespace deepinfer
