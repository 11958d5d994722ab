// Runs one generating request: submits its choices, feeds their tokens to the answer, sends
// chunks or the whole body, cancels when the client is gone (api.md §5, §6).
// Thread rule: StartGeneration from any thread; everything after it happens on the stream pool,
// one task of a request at a time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/request.h"
#include "server/answer_builder.h"
#include "server/server_state.h"

namespace deepinfer {

struct GenerationPlan {
  std::shared_ptr<const ServedModel> model;
  std::string model_name;
  std::unique_ptr<AnswerBuilder> answer;
  std::vector<EngineRequest> requests;  // one per choice; request_id is set here
  std::string grammar_path;             // of the field that asked for their grammar
  bool stream = false;
  bool only_warms = false;  // the prompt is computed and kept, the answer is empty
  bool bills_cache_writes = true;
};

// Answers the exchange, now or later, whatever happens. `state` outlives the generation:
// ServerState::generations counts it.
void StartGeneration(ServerState& state, std::shared_ptr<HttpExchange> exchange,
                     GenerationPlan plan);

}  // namespace deepinfer
