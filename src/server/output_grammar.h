// From the constraint of a validated request, whatever its dialect, to the grammar that the engine
// enforces (encoding.md §18).
// Thread rule: pure functions.
#pragma once

#include <memory>
#include <string>

#include "engine/request.h"
#include "server/api_error.h"
#include "server/chat_request.h"
#include "text/special_tokens.h"

namespace deepinfer {

struct RequestGrammar {
  std::shared_ptr<const OutputGrammar> grammar;  // null: any output
  std::string path;                              // of the field that asks for it
};

// unsupported_parameter for constraints that no grammar can join: tools beside an answer that must
// follow something else than a JSON Schema.
ApiResult<RequestGrammar> MakeRequestGrammar(const ChatRequest& request,
                                             const SpecialTokens& special);

// What the client of a request that ended with kGrammarError is told: 400 with the path of the
// field, or 503 when the compile pool is full.
ApiError GrammarError(const Status& status, const std::string& path);

}  // namespace deepinfer
