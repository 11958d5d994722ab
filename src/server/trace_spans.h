// The spans of one finished request in the JSON form of OTLP (api.md §17). Never any text of a
// prompt or an answer.
// Thread rule: pure function.
#pragma once

#include <string>

#include "server/request_record.h"

namespace deepinfer {

// JSON objects joined by commas: the SERVER span `llm_request` and its children `queue`,
// `kv_load`, `prefill`, `kv_transfer` and `decode`, those that happened. newer_names: also the
// attributes of the experimental conventions for generative AI. Precondition: facts.trace has a
// span id.
std::string FormatSpans(const RequestFacts& facts, bool newer_names);

}  // namespace deepinfer
