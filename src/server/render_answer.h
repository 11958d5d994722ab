// What the render routes answer with (api.md §2).
// Thread rule: any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/json_writer.h"
#include "kvcache/keys.h"
#include "server/http.h"
#include "server/prepare_chat.h"

namespace deepinfer {

// {"prompt","token_ids","num_tokens","image_spans","block_keys"} of one prompt. image_spans is
// empty for text models. block_keys names the whole blocks of the prompt in the caches that
// requests of `scope` see; empty where prefixes are not shared.
void WriteRendered(const ServedModel& model, const KvScope& scope, std::string_view prompt,
                   std::span<const int32_t> ids, JsonWriter* json);

// The whole answer of a chat dialect.
void RespondRendered(const ServedModel& model, const PreparedChat& prepared,
                     HttpExchange* exchange);

}  // namespace deepinfer
