// Constants of the fp64 exponential: reduction of the argument and Taylor coefficients. DetExp and
// its vector forms must read the same ones, or their bits part (docs/numerics.md §5).
// Thread rule: constants.
#pragma once

namespace deepinfer::det_internal {

constexpr double kLn2Hi = 0x1.62e42fefa3800p-1;  // 42 leading bits: n·hi is exact
constexpr double kLn2Lo = 0x1.ef35793c76730p-45;
constexpr double kLog2e = 0x1.71547652b82fep0;

// 1/i!, lowest power first.
constexpr int kExpTerms = 14;
constexpr double kInverseFactorial[kExpTerms] = {1.0,
                                                 1.0,
                                                 1.0 / 2,
                                                 1.0 / 6,
                                                 1.0 / 24,
                                                 1.0 / 120,
                                                 1.0 / 720,
                                                 1.0 / 5040,
                                                 1.0 / 40320,
                                                 1.0 / 362880,
                                                 1.0 / 3628800,
                                                 1.0 / 39916800,
                                                 1.0 / 479001600,
                                                 1.0 / 6227020800.0};

}  // namespace deepinfer::det_internal
