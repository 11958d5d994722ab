// Reader of one recorded model output, a line of recipe_stream.json or of the same shape.
// Thread rule: pure function; values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "engine/request.h"
#include "server/responses_request.h"
#include "server/usage.h"
#include "text/output_parser.h"

namespace deepinfer {

// One piece of recorded output.
struct RecordedChunk {
  std::string text;
  std::vector<int32_t> ids;  // instead of text
  std::vector<TokenLogprobs> logprobs;
  int64_t num_tokens = 1;
};

struct Recording {
  ParserSettings parser;  // without marker ids
  bool thinking = false;
  bool has_ready = true;  // the engine said that it is ready before the first chunk
  bool usage_field_in_chunks = false;
  bool has_ids = false;       // some chunk is made of ids
  bool has_logprobs = false;  // some chunk has log-probabilities
  UsageCounts usage;          // prompt side
  // Responses: what its answer repeats of the request, and the tools that are no plain functions.
  std::string echo_json;
  std::map<std::string, ResponsesTool, std::less<>> tools;
  std::vector<RecordedChunk> chunks;
  std::optional<std::string> finish;
};

// Parses `line` as parse_tool.h describes it; its request is one of `dialect`. invalid_request: it
// has another shape or its request is refused.
Result<Recording> ReadRecording(std::string_view dialect, std::string_view line);

}  // namespace deepinfer
