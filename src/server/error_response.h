// ApiError to HTTP answers, and the errors several routes raise.
// Thread rule: any thread.
#pragma once

#include <string>
#include <string_view>

#include "server/api_error.h"
#include "server/http.h"

namespace deepinfer {

HttpResponse ErrorResponse(const ApiError& error);

// Answers the exchange and notes the code in its record.
void RespondError(HttpExchange& exchange, const ApiError& error);
void NoteError(const HttpRequest& request, std::string_view code);

ApiError UnsupportedParameterError(std::string param, std::string message);

}  // namespace deepinfer
