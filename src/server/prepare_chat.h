// Chat body -> validated request, prompt and token limit: everything that can fail because of the
// request happens here, before admission (api.md §1).
// Thread rule: any thread; slow for long prompts, so never on a network thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "server/api_error.h"
#include "server/chat_request.h"
#include "server/server_state.h"
#include "text/renderer.h"

namespace deepinfer {

struct PreparedChat {
  ChatRequest request;
  std::vector<Segment> segments;
  std::vector<int32_t> prompt_ids;
};

// Parses, renders and tokenises. Refuses what this build cannot run: images without vision,
// constrained output.
ApiResult<PreparedChat> PrepareChat(const ServedModel& model, std::string_view body);

// 403 unless the key may use the model.
std::optional<ApiError> CheckModelAllowed(const ApiKey* key, std::string_view model);

// What all generating routes set in an engine request from the HTTP side: deadline and the ban on
// the image placeholder.
void SetServerLimits(const ServerState& state, const ServedModel& model,
                     const HttpRequest& http_request, EngineRequest* request);

// A random seed for requests that bring none (numerics.md §5.1).
uint64_t RandomSeed();

}  // namespace deepinfer
