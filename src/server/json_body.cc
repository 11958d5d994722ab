#include "server/json_body.h"

namespace deepinfer {

ApiResult<JsonDocument> ParseJsonBody(std::string_view body) {
  JsonDocument document;
  JsonFailure failure;
  if (!ParseJson(body, &document, &failure)) {
    return tl::unexpected(InvalidJsonError("The body is not valid JSON: " + failure.ToString()));
  }
  if (document.too_many_duplicates()) {
    return tl::unexpected(InvalidJsonError("The body has too many repeated keys."));
  }
  return document;
}

}  // namespace deepinfer
