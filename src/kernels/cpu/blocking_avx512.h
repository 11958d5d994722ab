// Register blocking of the AVX-512 linears: 32 registers hold 16 to 24 accumulators, the weights
// of one step and a broadcast value. Internal linkage on purpose (kernel_table.h).
// Thread rule: constants.
#pragma once

#include <cstdint>

namespace deepinfer {
namespace {

struct BlockingAvx512 {
  template <int kVecs>
  static constexpr int MaxRows() {
    return kVecs == 4 ? 4 : 8;
  }
  static constexpr int64_t kMaxRowsOf64 = 4;
  static constexpr int64_t kMaxRowsOf32 = INT64_MAX;
};

}  // namespace
}  // namespace deepinfer
