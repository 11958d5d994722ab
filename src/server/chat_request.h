// POST /v1/chat/completions: body -> everything the server needs to run it (api.md §3).
// What passes here cannot fail later because of the request, except for limits that need the
// prompt length or the images.
// Thread rule: pure functions of their arguments.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/request.h"
#include "server/api_error.h"
#include "text/conversation.h"

namespace deepinfer {

enum class SamplingPolicy : unsigned char {
  kHonour,    // what the client sent
  kDeepSeek,  // the hosted overrides of thinking mode
};

enum class ReasoningPassback : unsigned char {
  kFillEmpty,  // a missing reasoning_content counts as ""
  kReject,     // 400 where the mode needs it
};

struct ChatRequestOptions {
  bool default_thinking = true;
  int32_t default_effort = kEffortHigh;
  std::optional<int32_t> default_max_tokens;  // replaces the three defaults of api.md §3
  int32_t max_tokens_limit_thinking = 393216;
  int32_t max_tokens_limit_plain = 393216;
  bool allow_zero_max_tokens = false;  // pre-warm requests
  int32_t max_top_logprobs = 20;
  int32_t vocab_size = 129280;  // token ids in a body are below it
  SamplingPolicy sampling_policy = SamplingPolicy::kHonour;
  SamplingMode default_sampling_mode = SamplingMode::kAuto;
  LogprobsKind default_logprobs_kind = LogprobsKind::kRaw;
  ReasoningPassback reasoning_passback = ReasoningPassback::kFillEmpty;
  bool forced_tools_in_thinking = false;
  bool strict_fields = false;           // unknown fields are 400
  bool reject_duplicate_keys = true;    // for the keys we read
  bool test_hooks = false;              // reads test_force_ids and its siblings
  bool read_template_arguments = true;  // chat_template_kwargs
  // Messages and Responses.
  bool drop_server_tools = false;    // tools the server would run: dropped, else 400
  bool reject_server_tools = false;  // Responses drops them otherwise
  bool responses_extensions = true;  // kept history and input without a readable item are 400
  bool messages_any_forces = true;   // tool_choice any is enforced; off: same as auto
  bool messages_prefill = false;     // a final assistant message is continued
  bool messages_extensions = true;  // output_config.format, redacted_thinking, tools of type custom
  bool check_regex = true;          // a malformed expression is 400 before it is compiled
  int32_t unknown_model_status = 404;
  size_t max_messages = 100000;
  size_t max_parts = 100000;  // of all messages together
  size_t max_tools = 128;
  size_t max_images = 600;
  size_t max_stop_bytes = 1024;  // of one stop string

  // Prompt form of a served model name, or nothing if the name is not served. Empty: every name
  // is accepted with `default_form` and the caller checks it.
  std::function<std::optional<PromptForm>(std::string_view model)> resolve_model;
  PromptForm default_form = PromptForm::kV41;
  std::string served_models;  // for the message of an unknown model
};

enum class ImageDetail : unsigned char { kLow, kHigh, kOriginal, kAuto };
std::string_view ImageDetailName(ImageDetail detail);

struct ImageSource {
  bool is_data_url = false;
  std::string url;
  ImageDetail detail = ImageDetail::kHigh;
  std::string path;  // ".messages[2]": the message it came from
};

enum class ToolChoice : unsigned char { kNone, kAuto, kRequired, kNamed };

enum class ResponseFormat : unsigned char {
  kText,
  kJsonObject,
  kJsonSchema,
  kRegex,
  kStructuralTag
};
std::string_view ResponseFormatName(ResponseFormat format);

enum class ConstraintKind : unsigned char {
  kJson,              // schema: compact JSON Schema, "" for any JSON object
  kRegex,             // schema: the expression
  kChoice,            // schema: JSON array of strings
  kGrammar,           // schema: the grammar text
  kStructuralTag,     // schema: the structural tag in JSON
  kToolCall,          // schema: JSON array of the tools; calls are optional
  kToolCallRequired,  // schema: JSON array of the tools; at least one call
};
std::string_view ConstraintKindName(ConstraintKind kind);

struct OutputConstraint {
  ConstraintKind kind = ConstraintKind::kJson;
  std::string schema = {};
  std::string path = {};  // of the field it came from, for messages
  bool strict = false;    // parts that cannot be enforced refuse the request
};

// Where the output parser starts (encoding.md §8).
enum class OutputStart : unsigned char {
  kContentStart,           // no thinking
  kReasoningStart,         // behind <think>
  kReasoningContinuation,  // inside given reasoning
  kContentContinuation,    // inside given content
};

struct ParsingSettings {
  bool parse_tool_calls = false;
  bool starts_in_tool_calls = false;
  bool parse_json_output = false;
  OutputStart start = OutputStart::kContentStart;
  std::vector<std::string> stop_sequences;
  bool include_stop_in_output = false;
  int64_t num_tokens_without_stop = 0;  // stop sequences end nothing before that many tokens
};

struct StreamSettings {
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage_stats = false;
};

// Labels and cache hints that never change tokens (api.md §3, §7).
struct RequestLabels {
  std::string user;
  std::string safety_identifier;
  std::string user_id;
  std::string cache_salt;
  std::string prompt_cache_key;
  std::string prompt_cache_retention;
  std::string prompt_cache_mode;  // "implicit", "explicit" or ""
  std::string prompt_cache_ttl;
  int32_t num_cache_breakpoints = 0;
  std::string service_tier;
  std::string request_id;
  std::string session_id;
  int64_t priority = 0;
};

struct TestHookFields {
  std::vector<int32_t> force_ids;
  std::string force_text;
  std::vector<int32_t> force_accept;
  int32_t commit = 0;  // tokens per step; 0 = not given, -1 = all
};

struct ChatRequest {
  std::string model;
  std::string_view prompt_field = "messages";  // of the body; what is too long
  Conversation conversation;
  std::vector<ImageSource> images;  // by image_index
  std::vector<std::string> tool_names;

  // sampling.max_tokens stays unset; see ResolveMaxTokens.
  SamplingParams sampling;
  std::optional<int32_t> max_tokens;
  std::vector<std::string> bad_words;  // banned once they are tokens; see BanWords
  int32_t num_choices = 1;
  bool logprobs = false;
  std::optional<int32_t> top_logprobs;

  ToolChoice tool_choice = ToolChoice::kNone;
  std::string forced_tool;  // kNamed
  bool parallel_tool_calls = true;
  // Calls are forced but the prompt does not open their block: the grammar does, behind the
  // reasoning in thinking mode, at once without.
  bool force_calls_after_reasoning = false;

  ResponseFormat response_format = ResponseFormat::kText;
  // What the generated text must match; with tools in effect it is about their calls, and a text
  // answer must then match answer_constraint, which else equals it.
  std::optional<OutputConstraint> constraint;
  std::optional<OutputConstraint> answer_constraint;

  // "low", "high", "xhigh" or "max"; "" for a number and without thinking.
  std::string effort_name;

  ParsingSettings parsing;
  StreamSettings stream;
  RequestLabels labels;
  TestHookFields test_hooks;
  bool return_token_ids = false;
  bool echo = false;
  bool add_generation_prompt = true;

  std::vector<std::string> unknown_fields;  // top level, for the counter
  std::vector<std::string> ignored_fields;  // known, accepted, without effect
};

// Errors: stage kParse when the body is not JSON or a field has the wrong type, kConvert when a
// value is refused; an unknown model is 404.
ApiResult<ChatRequest> ParseChatRequest(std::string_view body, const ChatRequestOptions& options);

// The token limit of the answer (api.md §3): the client's, else the default of mode and effort,
// cut to the room left in the context. context_length_exceeded when the prompt alone fills it.
ApiResult<int32_t> ResolveMaxTokens(const ChatRequest& request, const ChatRequestOptions& options,
                                    int64_t num_prompt_tokens, int64_t num_context_tokens);

}  // namespace deepinfer
