// Which sequence gives up its memory when blocks run short (architecture.md §7).
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <span>

#include "sched/snapshot.h"

namespace deepinfer {

// Lowest class, then fewest computed tokens, then the youngest id. Sequences parked within
// kParkAgainUs or about to end are spared as long as another can be had. nullptr when nothing may
// be parked.
const Holding* ChooseVictim(std::span<const Holding* const> holders, int64_t now_us);

}  // namespace deepinfer
