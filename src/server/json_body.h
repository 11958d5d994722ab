// Request body -> JSON document, with the error of api.md §12 when it is not valid JSON.
// Thread rule: pure functions.
#pragma once

#include <string_view>

#include "server/api_error.h"
#include "text/json_text.h"

namespace deepinfer {

// 400 `invalid_json` (stage parse) with line and column of the fault.
ApiResult<JsonDocument> ParseJsonBody(std::string_view body);

}  // namespace deepinfer
