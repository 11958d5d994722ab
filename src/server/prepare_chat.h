// Chat body -> validated request, prompt and token limit: everything that can fail because of the
// request happens here, before admission (api.md §1).
// Thread rule: any thread; slow for long prompts, so never on a network thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request.h"
#include "kvcache/keys.h"
#include "server/api_error.h"
#include "server/chat_request.h"
#include "server/exact_replay.h"
#include "server/generation.h"
#include "server/output_grammar.h"
#include "server/server_state.h"
#include "text/renderer.h"

namespace deepinfer {

struct PreparedChat {
  ChatRequest request;
  std::vector<Segment> segments;
  std::vector<int32_t> prompt_ids;
  std::vector<int32_t> resume_points;  // places in prompt_ids that the client marked, ascending
  KvScope cache_scope;
  RequestGrammar grammar;
  ReplayedTurns replayed;
};

// Renders and tokenises what a dialect's parser made of a body; turns that were sampled here are
// rendered as they were. Refuses what this build cannot run, images without vision, and models
// that the key may not use.
ApiResult<PreparedChat> PrepareRequest(const ServerState& state, const ServedModel& model,
                                       const HttpRequest& http_request,
                                       ApiResult<ChatRequest> request);
// The same for a chat body.
ApiResult<PreparedChat> PrepareChat(const ServerState& state, const ServedModel& model,
                                    const HttpRequest& http_request, std::string_view body);

// Where an answer with tool calls is remembered; empty when that is off or there are no tools.
ToolTurnSink SinkOfToolTurns(ServerState& state, const ServedModel& model,
                             const PreparedChat& prepared, const GenerationPlan& plan);

// What the chat dialects share of a generation: counts unknown fields and makes one engine request
// per choice. The caller adds `id` and `answer`.
// context_length_exceeded when the prompt leaves no room.
ApiResult<GenerationPlan> MakePlan(ServerState& state, std::shared_ptr<const ServedModel> model,
                                   const HttpRequest& http_request, const PreparedChat& prepared);

// The session a body names, where no header did.
void NoteSession(const HttpRequest& http_request, const RequestLabels& labels);

// 403 unless the key may use the model.
std::optional<ApiError> CheckModelAllowed(const ApiKey* key, std::string_view model);

// A request for 0 tokens warms the cache: the step that ends its prompt decides one token in any
// case, and nobody is shown it.
inline int32_t EngineMaxTokens(int32_t max_tokens) { return std::max(max_tokens, 1); }

// Bans the tokens that spell a word, at the start of a text and behind a space: the last of them
// where the output ends with the others. Other tokens with the same letters stay free.
void BanWords(const Tokenizer& tokenizer, const std::vector<std::string>& words,
              SamplingParams* sampling);

// What all generating routes set in an engine request from the HTTP side: deadlines, class, who may
// share its cached prefixes, the operator's bans and the one on the image placeholder. A client's
// read time-out bounds a whole answer only when it is not streamed.
void SetServerLimits(const ServerState& state, const ServedModel& model,
                     const HttpRequest& http_request, const ChatRequest& body,
                     EngineRequest* request);

// A random seed for requests that bring none (numerics.md §5.1).
uint64_t RandomSeed();

}  // namespace deepinfer
