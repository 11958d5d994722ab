// The instants of a finished request in order, as ledger lines and traces tell them.
// Thread rule: pure function.
#pragma once

#include "economics/ledger_record.h"
#include "server/request_record.h"

namespace deepinfer {

// Closed at the time of the call. What the engine reports as durations is laid between what was
// seen here.
LedgerTimes TimesOf(const RequestFacts& facts);

}  // namespace deepinfer
