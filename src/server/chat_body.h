// The fields of a Chat Completions body with their types checked and nothing else (stage "parse").
// Internal to the request validator. Pointers reach into the JSON document of the request.
// Thread rule: values of one request.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/chat_request.h"

namespace deepinfer {

struct ReadState;
class ObjectReader;

struct BodyPart {
  enum class Kind : unsigned char { kText, kImage, kFile };

  Kind kind = Kind::kText;
  std::string text;  // the text, or the URL of an image
  ImageDetail detail = ImageDetail::kHigh;
  std::optional<std::string> file_id;
  std::optional<std::string> file_data;
  bool cache_breakpoint = false;
};

struct BodyMessage {
  enum class Role : unsigned char { kSystem, kUser, kAssistant, kTool, kReminder };

  Role role = Role::kUser;
  bool is_developer = false;
  bool has_content = false;
  std::vector<BodyPart> parts;
  std::optional<std::string> reasoning;
  std::vector<ToolCall> calls;
  std::string tool_call_id;
  bool prefix = false;
};

struct BodyTool {
  std::string name;
  std::string prompt_name;      // name in the prompt; "": from name and namespace
  std::string name_path;        // for messages: tools[2].function.name
  std::string parameters_path;  // tools[2].function.parameters
  std::optional<std::string> description;
  const boost::json::value* parameters = nullptr;  // null: absent
  std::optional<bool> strict;
  std::optional<std::string> outer_namespace;  // beside "function"
  std::optional<std::string> inner_namespace;  // inside it
  bool deferred = false;                       // not listed until the conversation adds it
  bool resume_behind = false;                  // a cache mark
};

struct BodyToolChoice {
  enum class Mode : unsigned char {
    kNone,
    kAuto,
    kRequired,
    kNamed,
    kAny,  // at least one call, with the prompt of kAuto
  };

  Mode mode = Mode::kAuto;
  std::string name;  // kNamed
  std::optional<std::string> name_namespace;
  bool restricts_tools = false;  // allowed_tools
  std::vector<std::string> allowed;
};

struct BodyResponseFormat {
  ResponseFormat kind = ResponseFormat::kText;
  const boost::json::value* schema = nullptr;
  bool strict = false;
  bool shown = true;  // the prompt states the schema; off: it is only enforced
  std::string regex;
  std::string structural_tag;
};

// `structured_outputs`, its top-level aliases and its older guided_* names.
struct BodyStructuredOutput {
  ConstraintKind kind = ConstraintKind::kJson;
  // kJson: an object, or a string holding one; null: any JSON object.
  const boost::json::value* schema = nullptr;
  std::string text;                  // kRegex, kGrammar, kStructuralTag
  std::vector<std::string> choices;  // kChoice
  std::string path;
};

struct BodyEffort {
  bool off = false;
  int32_t value = kEffortHigh;
  std::string name;  // "low", "high", "xhigh", "max"; "" for a number
};

struct BodyTemplateArguments {
  std::optional<bool> thinking;
  std::optional<BodyEffort> effort;
};

struct ChatBody {
  std::string model;
  std::vector<BodyMessage> messages;
  bool continue_final_message = false;

  std::optional<bool> thinking;
  std::optional<BodyEffort> effort;
  BodyTemplateArguments template_arguments;

  std::vector<BodyTool> tools;
  std::optional<ApiError> tool_fault;  // of their names, found while reading
  std::optional<BodyToolChoice> tool_choice;
  std::optional<bool> parallel_tool_calls;
  std::optional<BodyResponseFormat> response_format;
  std::vector<BodyStructuredOutput> structured_outputs;

  std::optional<int64_t> max_tokens;
  std::optional<int64_t> max_completion_tokens;
  std::string_view max_tokens_name = "max_tokens";  // as this dialect spells it
  bool clips_max_tokens = false;                    // a limit above ours is cut, not refused
  std::optional<int64_t> min_tokens;
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<int64_t> top_k;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::optional<double> frequency_penalty;
  std::optional<double> presence_penalty;
  std::optional<int64_t> n;
  std::optional<uint64_t> seed;
  std::optional<SamplingMode> sampling_mode;
  std::vector<std::pair<std::string, double>> logit_bias;
  bool stop_is_array = false;
  std::vector<std::string> stop;
  std::vector<int64_t> stop_token_ids;
  std::vector<int64_t> allowed_token_ids;
  std::vector<int64_t> banned_token_ids;
  std::vector<std::string> bad_words;
  std::optional<LogprobsKind> logprobs_kind;
  std::optional<bool> include_stop_str_in_output;
  std::optional<bool> ignore_eos;
  std::optional<bool> logprobs;
  std::optional<int64_t> top_logprobs;

  std::optional<bool> stream;
  bool has_stream_options = false;
  bool include_usage = false;
  bool continuous_usage_stats = false;

  RequestLabels labels;
  TestHookFields test_hooks;
  bool wants_audio = false;
  bool return_token_ids = false;
  bool echo = false;
  bool add_generation_prompt = true;

  std::vector<std::string> unknown_fields;
  std::vector<std::string> ignored_fields;
};

// Reads the whole body; faults go to state->error.
ChatBody ReadChatBody(const boost::json::value& root, const ChatRequestOptions& options,
                      ReadState* state);

// Parts of ReadChatBody that have their own files.
void ReadMessages(ObjectReader* body, ReadState* state, std::vector<BodyMessage>* messages);
void ReadTools(ObjectReader* body, ReadState* state, std::vector<BodyTool>* tools);
std::optional<BodyToolChoice> ReadToolChoice(ObjectReader* body, ReadState* state);
std::optional<BodyResponseFormat> ReadResponseFormat(ObjectReader* body);
void ReadStructuredOutputs(ObjectReader* body, std::vector<BodyStructuredOutput>* outputs);

// `prompt_cache_breakpoint` of a part: a flag or an object, whose options do not matter here.
bool ReadCacheBreakpoint(ObjectReader* part);

// Fields that all dialects spell alike: an effort by name or number, thinking {type}.
std::optional<BodyEffort> ReadEffort(ObjectReader* object, std::string_view key);
std::optional<bool> ReadThinkingType(ObjectReader* body);
// Notes the fields nobody read; with strict_fields the first is refused. The last reading step.
void CheckUnknownFields(ObjectReader* body, const ChatRequestOptions& options, ChatBody* result);

// Fields that raw completions have too. ReadSampling includes the token limits, n, seed, stop and
// logit_bias, but no logprobs.
void ReadSampling(ObjectReader* body, ChatBody* result);
void ReadStream(ObjectReader* body, ChatBody* result);
void ReadLabels(ObjectReader* body, RequestLabels* labels);
void ReadTestHooks(ObjectReader* body, TestHookFields* hooks);

}  // namespace deepinfer
