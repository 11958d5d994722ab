// What each request of a step owes for the time that the step kept the device (docs/economics.md
// section 3, "step-share-v1").
// Thread rule: pure function.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace deepinfer {

// Parts of `total` in proportion to the weights, which add up to it exactly: rounded down, then the
// largest remainders get one more each, the lower name first where they are equal, so that the
// parts do not depend on the order. All zero where no weight is positive. Preconditions:
// total >= 0, no weight is negative, a name for each weight.
std::vector<int64_t> DivideExactly(int64_t total, std::span<const int64_t> weights,
                                   std::span<const std::string_view> names);

}  // namespace deepinfer
