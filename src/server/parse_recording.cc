#include "server/parse_recording.h"

#include <boost/json.hpp>
#include <utility>

#include "server/chat_request.h"
#include "server/chat_response.h"
#include "server/messages_request.h"
#include "text/special_tokens.h"

namespace deepinfer {
namespace {

namespace json = boost::json;

// The recorded runs: 7 prompt tokens, 3 of them cached; with "_usage_no_cache" 11 and none; with
// "_no_ready" the engine never said that it is ready.
constexpr UsageCounts kReadyUsage{.prompt_tokens = 7, .cached_tokens = 3};
constexpr UsageCounts kReadyUsageNoCache{.prompt_tokens = 11};

const json::value* Find(const json::value& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  const json::value* found = object.as_object().if_contains(key);
  return found == nullptr || found->is_null() ? nullptr : found;
}

bool IsTrue(const json::value* value) {
  return value != nullptr && value->is_bool() && value->as_bool();
}

Result<int64_t> ReadInt(const json::value& value) {
  boost::system::error_code error;
  const auto number = value.to_number<int64_t>(error);
  if (error) return InvalidRequest("chunk: expected an integer");
  return number;
}

Result<float> ReadFloat(const json::value& value) {
  boost::system::error_code error;
  const double number = value.to_number<double>(error);
  if (error) return InvalidRequest("logprobs: expected a number");
  return static_cast<float>(number);
}

// [logprob, [[id, logprob], ...]]
Result<TokenLogprobs> ReadLogprobs(const json::value& value) {
  const json::array* pair = value.if_array();
  if (pair == nullptr || pair->size() != 2 || !(*pair)[1].is_array()) {
    return InvalidRequest("logprobs: expected [number, [[id, number], ...]]");
  }
  TokenLogprobs logprobs;
  DI_ASSIGN_OR_RETURN(logprobs.logprob, ReadFloat((*pair)[0]));
  for (const json::value& entry : (*pair)[1].as_array()) {
    const json::array* top = entry.if_array();
    if (top == nullptr || top->size() != 2) {
      return InvalidRequest("logprobs: expected [id, number]");
    }
    DI_ASSIGN_OR_RETURN(const int64_t id, ReadInt((*top)[0]));
    DI_ASSIGN_OR_RETURN(const float logprob, ReadFloat((*top)[1]));
    logprobs.top.emplace_back(static_cast<int32_t>(id), logprob);
  }
  return logprobs;
}

Result<RecordedChunk> ReadChunk(const json::value& value) {
  RecordedChunk chunk;
  if (value.is_string()) {
    chunk.text = value.as_string();
    return chunk;
  }
  if (const json::value* ids = Find(value, "ids"); ids != nullptr && ids->is_array()) {
    for (const json::value& id : ids->as_array()) {
      DI_ASSIGN_OR_RETURN(const int64_t number, ReadInt(id));
      if (number < 0 || number > INT32_MAX) return InvalidRequest("ids: out of range");
      chunk.ids.push_back(static_cast<int32_t>(number));
    }
    chunk.num_tokens = static_cast<int64_t>(chunk.ids.size());
    const json::value* logprobs = Find(value, "logprobs");
    if (logprobs == nullptr) return chunk;
    if (!logprobs->is_array() || logprobs->as_array().size() != chunk.ids.size()) {
      return InvalidRequest("logprobs: expected one entry per id");
    }
    for (const json::value& entry : logprobs->as_array()) {
      DI_ASSIGN_OR_RETURN(TokenLogprobs one, ReadLogprobs(entry));
      chunk.logprobs.push_back(std::move(one));
    }
    return chunk;
  }
  const json::value* text = Find(value, "text");
  if (text == nullptr || !text->is_string()) {
    return InvalidRequest("chunk: expected a string, {\"text\"} or {\"ids\"}");
  }
  chunk.text = text->as_string();
  if (const json::value* n = Find(value, "n")) {
    DI_ASSIGN_OR_RETURN(chunk.num_tokens, ReadInt(*n));
  }
  return chunk;
}

Result<ParserStart> ReadStart(const json::value* stage) {
  if (stage == nullptr) return ParserStart::kContentStart;
  const std::string_view name =
      stage->is_string() ? std::string_view(stage->as_string()) : std::string_view();
  if (name == "reasoning_start") return ParserStart::kReasoningStart;
  if (name == "reasoning_continuation") return ParserStart::kReasoningContinuation;
  if (name == "content_start") return ParserStart::kContentStart;
  if (name == "content_continuation") return ParserStart::kContentContinuation;
  return InvalidRequest("parsing.thinking_initial_stage: unknown stage");
}

Status ReadParsing(const json::value& parsing, Recording* recording) {
  ParserSettings& parser = recording->parser;
  const json::value* stage = Find(parsing, "thinking_initial_stage");
  DI_ASSIGN_OR_RETURN(parser.start, ReadStart(stage));
  recording->thinking = stage != nullptr;
  parser.parse_tool_calls = IsTrue(Find(parsing, "parse_tool_calls"));
  parser.starts_in_tool_calls = IsTrue(Find(parsing, "starts_in_tool_calls"));
  parser.parse_json_output = IsTrue(Find(parsing, "parse_json_output"));
  const json::value* stops = Find(parsing, "stop_sequences");
  if (stops == nullptr) return OkStatus();
  if (!stops->is_array()) return InvalidRequest("parsing.stop_sequences: expected an array");
  for (const json::value& stop : stops->as_array()) {
    if (!stop.is_string()) return InvalidRequest("parsing.stop_sequences: expected strings");
    parser.stop_strings.emplace_back(stop.as_string());
  }
  return OkStatus();
}

// The settings that follow from the request, and for Responses what the answer needs of it.
Status ReadFromRequest(std::string_view dialect, const json::value& line,
                       const json::value& request, Recording* recording) {
  ChatRequestOptions options;
  options.forced_tools_in_thinking = true;
  const json::value* given = Find(line, "options");
  if (given != nullptr && Find(*given, "default_thinking_mode") != nullptr) {
    options.default_thinking = IsTrue(Find(*given, "default_thinking_mode"));
  }
  const auto take = [&](const auto& parsed, const auto& common_of) -> Status {
    if (!parsed) return InvalidRequest("request: " + parsed.error().message);
    const ChatRequest& common = common_of(*parsed);
    recording->parser = MakeParserSettings(common.parsing, SpecialTokens());
    recording->thinking = common.conversation.thinking;
    return OkStatus();
  };
  const auto common_member = [](const auto& parsed) -> const ChatRequest& { return parsed.common; };
  const std::string body = json::serialize(request);
  if (dialect == "messages") return take(ParseMessagesRequest(body, options), common_member);
  if (dialect == "responses") {
    ApiResult<ResponsesRequest> parsed = ParseResponsesRequest(body, options);
    if (parsed) {
      recording->echo_json = std::move(parsed->echo_json);
      recording->tools = std::move(parsed->tools);
    }
    return take(parsed, common_member);
  }
  return take(ParseChatRequest(body, options),
              [](const ChatRequest& parsed) -> const ChatRequest& { return parsed; });
}

Status ReadRequest(std::string_view dialect, const json::value& line, Recording* recording) {
  const json::value* request = Find(line, "request");
  if (request != nullptr) {
    const json::value* stream_options = Find(*request, "stream_options");
    const bool include_usage =
        stream_options != nullptr && IsTrue(Find(*stream_options, "include_usage"));
    recording->usage_field_in_chunks = include_usage || !IsTrue(Find(*request, "stream"));
  }
  const json::value* parsing = Find(line, "parsing");
  if (request == nullptr && parsing == nullptr) {
    return InvalidRequest("expected `request` or `parsing`");
  }
  if (request != nullptr && (parsing == nullptr || dialect == "responses")) {
    DI_RETURN_IF_ERROR(ReadFromRequest(dialect, line, *request, recording));
  }
  if (parsing == nullptr) return OkStatus();
  recording->parser = {};
  return ReadParsing(*parsing, recording);
}

}  // namespace

Result<Recording> ReadRecording(std::string_view dialect, std::string_view text) {
  boost::system::error_code error;
  const json::value line = json::parse(text, error);
  if (error) return InvalidRequest("not valid JSON: " + error.message());
  Recording recording;
  recording.usage = kReadyUsage;
  DI_RETURN_IF_ERROR(ReadRequest(dialect, line, &recording));
  const json::value* chunks = Find(line, "chunks");
  if (chunks == nullptr || !chunks->is_array()) return InvalidRequest("chunks: expected an array");
  for (const json::value& chunk : chunks->as_array()) {
    DI_ASSIGN_OR_RETURN(RecordedChunk one, ReadChunk(chunk));
    recording.has_ids = recording.has_ids || !one.ids.empty();
    recording.has_logprobs = recording.has_logprobs || !one.logprobs.empty();
    recording.chunks.push_back(std::move(one));
  }
  if (const json::value* finish = Find(line, "finish")) {
    if (!finish->is_string()) return InvalidRequest("finish: expected a string or null");
    recording.finish = finish->as_string();
  }
  if (const json::value* name = Find(line, "name"); name != nullptr && name->is_string()) {
    const std::string_view value = name->as_string();
    recording.has_ready = value.find("_no_ready") == std::string_view::npos;
    if (value.find("_usage_no_cache") != std::string_view::npos) {
      recording.usage = kReadyUsageNoCache;
    }
  }
  if (!recording.has_ready) recording.usage = {};
  return recording;
}

}  // namespace deepinfer
