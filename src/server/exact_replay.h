// Exact replay between the routes and the record of sampled turns (api.md §7).
// Thread rule: any thread.
#pragma once

#include <cstdint>
#include <span>

#include "engine/request.h"
#include "server/model_context.h"
#include "server/replay_store.h"
#include "server/response_common.h"

namespace deepinfer {

// Keeps such answers to a prompt, as long as the request lets its cache be kept. `store` outlives
// the sink.
ToolTurnSink KeepToolTurns(ReplayStore* store, const EngineRequest& request,
                           const SpecialTokens& special, std::span<const int32_t> prompt_ids);

struct ReplayedTurns {
  int32_t num_used = 0;
  int32_t num_changed = 0;  // known, but sent back with other text, calls or arguments
};

// Puts the sampled tokens into the turns of a conversation that are known in this scope: into each
// known turn once, and until they are more than the model's context holds.
ReplayedTurns ReplayToolTurns(const ReplayStore& store, const ReplayOwner& owner,
                              const ModelContext& model, Conversation* conversation);

}  // namespace deepinfer
