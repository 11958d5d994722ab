// Answers that say whether the server can serve (api.md §15).
// Thread rule: any thread; no lock of the engine is taken.
#pragma once

#include "server/api_error.h"
#include "server/http.h"

namespace deepinfer {

struct ServerState;

// The answer of API routes while no generation can start: the error body plus phase, done and
// total of the load.
HttpResponse UnavailableResponse(const ServerState& state, const HttpRequest& request,
                                 const ApiError& error);

}  // namespace deepinfer
