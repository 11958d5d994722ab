// Money as whole pico-units of a currency (1e-12): lines in 64 bits, sums in 128. No floating point
// (economics.md §1).
// Thread rule: values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace deepinfer {

using Pico = int64_t;
__extension__ using PicoSum = __int128;

// Decimal with exactly 12 digits after the point, as "0.000774336000".
std::string FormatMoney(PicoSum pico);

// "0.0028" per million tokens as pico-units per token: 2,800. invalid_request for anything but a
// plain decimal from 0 to 1,000,000 with at most six digits after the point.
Result<Pico> ParsePricePerMillion(std::string_view text);

// "2.00" as pico-units. invalid_request for anything but a plain decimal from 0 to 1,000,000 with
// at most twelve digits after the point.
Result<Pico> ParseAmount(std::string_view text);

}  // namespace deepinfer
