// The object the render routes answer with, one per prompt (api.md §2).
// Thread rule: pure function.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/json_writer.h"

namespace deepinfer {

// {"prompt","token_ids","num_tokens","image_spans"}; image_spans is empty for text models.
inline void WriteRendered(std::string_view prompt, std::span<const int32_t> ids, JsonWriter* json) {
  json->BeginObject().Field("prompt", prompt).Key("token_ids").BeginArray();
  for (const int32_t id : ids) json->Int(id);
  json->EndArray().Field("num_tokens", static_cast<int64_t>(ids.size()));
  json->Key("image_spans").BeginArray().EndArray().EndObject();
}

}  // namespace deepinfer
