// ApiError to HTTP answers, and the errors several routes raise.
// Thread rule: any thread.
#pragma once

#include <string>
#include <string_view>

#include "server/api_error.h"
#include "server/http.h"

namespace deepinfer {

// In the shape of the API the request speaks (api.md §12).
HttpResponse ErrorResponse(const HttpRequest& request, const ApiError& error);

// Answers the exchange and notes the code in its record.
void RespondError(HttpExchange& exchange, const ApiError& error);
void NoteError(const HttpRequest& request, std::string_view code);

ApiError UnsupportedParameterError(std::string param, std::string message);

}  // namespace deepinfer
