// Requests, events and statistics as messages (docs/cluster.md §3). What comes in is untrusted:
// enumerations and sizes are checked here, ranges by ValidateRequest.
// Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "cluster/worker.h"
#include "engine/request.h"
#include "engine/statistics.h"

namespace deepinfer {

namespace wire {
class Costs;
class HandOffCounts;
class Request;
class Statistics;
class StoredPrefix;
class TokenEvent;
}  // namespace wire

// now_us turns deadlines into what is left of them: clocks of two hosts differ.
void EncodeRequest(const EngineRequest& request, int64_t now_us, wire::Request* out);
// invalid_request names the field.
Result<EngineRequest> DecodeRequest(const wire::Request& in, int64_t now_us);

// Image and credit stay behind: bytes have a way of their own.
void EncodeEvent(const std::string& request_id, uint32_t attempt, const TokenEvent& event,
                 wire::TokenEvent* out);
Result<TokenEvent> DecodeEvent(const wire::TokenEvent& in);

void EncodeStatistics(const EngineStatistics& statistics, wire::Statistics* out);
// Values this build does not know are left out, missing ones are 0.
EngineStatistics DecodeStatistics(const wire::Statistics& in);

void EncodeStored(const StoredPrefix& stored, wire::StoredPrefix* out);
// Of a prompt of so many tokens; what cannot be becomes nothing.
StoredPrefix DecodeStored(const wire::StoredPrefix& in, int64_t prompt_tokens);

void EncodeCosts(const PredictedCosts& costs, wire::Costs* out);
// Numbers that no engine predicts become unknown.
PredictedCosts DecodeCosts(const wire::Costs& in);

void EncodeHandOffs(const HandOffCounters& counters, wire::HandOffCounts* out);
HandOffCounters DecodeHandOffs(const wire::HandOffCounts& in);

}  // namespace deepinfer
