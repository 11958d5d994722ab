// The Chat Completions validator: every field's rule, the path of each fault, and reported
// failures of other servers.
#include "server/chat_request.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "text/prompt_encoder.h"
#include "text/renderer.h"

namespace deepinfer {
namespace {

constexpr std::string_view kUser = R"([{"role":"user","content":"json q"}])";

std::string Body(std::string_view fields, std::string_view messages = kUser) {
  std::string body = R"({"model":"m","messages":)";
  body.append(messages);
  if (!fields.empty()) body.append(",").append(fields);
  return body + "}";
}

ApiResult<ChatRequest> Parse(std::string_view fields, const ChatRequestOptions& options = {}) {
  return ParseChatRequest(Body(fields), options);
}

ChatRequest Accepted(std::string_view fields, const ChatRequestOptions& options = {}) {
  auto request = Parse(fields, options);
  EXPECT_TRUE(request.has_value()) << fields << ": " << request.error().message;
  return request ? *std::move(request) : ChatRequest{};
}

ApiError Refused(std::string_view body, const ChatRequestOptions& options = {}) {
  auto request = ParseChatRequest(body, options);
  EXPECT_FALSE(request.has_value()) << body;
  return request ? ApiError{} : request.error();
}

ApiError RefusedField(std::string_view fields, const ChatRequestOptions& options = {}) {
  return Refused(Body(fields), options);
}

struct Fault {
  std::string_view fields;
  std::string_view param;
  std::string_view code;
  ErrorStage stage = ErrorStage::kConvert;
};

void ExpectFaults(const std::vector<Fault>& faults) {
  for (const Fault& fault : faults) {
    SCOPED_TRACE(fault.fields);
    const ApiError error = RefusedField(fault.fields);
    EXPECT_EQ(error.status, 400);
    EXPECT_EQ(error.type, "invalid_request_error");
    EXPECT_EQ(error.param.value_or(""), fault.param);
    EXPECT_EQ(error.code, fault.code);
    EXPECT_EQ(error.stage, fault.stage);
    EXPECT_NE(error.message, "");
  }
}

constexpr ErrorStage kParse = ErrorStage::kParse;

// The size is asked for before the schema is read: these are no schemas.
TEST(ChatRequest, SchemasBeyondFourMebibytesAreRefusedUnread) {
  const auto schema_of = [](size_t size_bytes) {
    std::string schema = R"({"type":"object","pattern":"(","description":")";
    schema.append(size_bytes - schema.size() - 2, 'x');
    return schema + "\"}";
  };
  const std::string fits = schema_of(size_t{4} << 20);
  const std::string larger = schema_of((size_t{4} << 20) + 1);
  const std::string many = R"({"type":"object","enum":[)" + [] {
    std::string items = "0";
    for (size_t i = 0; i < size_t{2} << 20; ++i) items += ",0";
    return items;
  }() + R"(],"pattern":"("})";
  std::string quoted = larger;
  for (size_t at = 0; (at = quoted.find('"', at)) != std::string::npos; at += 2) {
    quoted.insert(at, 1, '\\');
  }
  const std::vector<std::pair<std::string, std::string>> places = {
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"n","schema":)", "}}"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":)",
       "}}"},
      {R"("structured_outputs":{"json":)", "}"},
      {R"("tools":[{"type":"function","function":{"name":"f","parameters":)", "}}]"},
      {R"("tools":[{"type":"function","function":{"name":"f","strict":true,"parameters":)", "}}]"},
  };
  for (const auto& [before, after] : places) {
    for (const std::string& schema : {larger, many}) {
      const ApiError error = RefusedField(before + schema + after);
      EXPECT_EQ(error.code, "invalid_schema") << before;
      EXPECT_NE(error.message.find("larger than 4096 KiB"), std::string::npos) << before;
    }
    const auto read = Parse(before + fits + after);
    if (read) continue;
    EXPECT_EQ(read.error().message.find("larger than"), std::string::npos) << before;
  }
  const ApiError error = RefusedField(R"("structured_outputs":{"json":")" + quoted + "\"}");
  EXPECT_NE(error.message.find("larger than 4096 KiB"), std::string::npos);
}

TEST(ChatRequest, WrongTypesNameTheFieldAndItsPath) {
  ExpectFaults({
      {R"("temperature":"1")", "temperature", "invalid_type", kParse},
      {R"("temperature":true)", "temperature", "invalid_type", kParse},
      {R"("max_tokens":1.0)", "max_tokens", "invalid_type", kParse},
      {R"("max_tokens":-1)", "max_tokens", "invalid_value", kParse},
      {R"("seed":1.5)", "seed", "invalid_type", kParse},
      {R"("seed":-1)", "seed", "invalid_value", kParse},
      {R"("n":"1")", "n", "invalid_type", kParse},
      {R"("stop":[1])", "stop", "invalid_type", kParse},
      {R"("stream":1)", "stream", "invalid_type", kParse},
      {R"("stream_options":3)", "stream_options", "invalid_type", kParse},
      {R"("stream":true,"stream_options":{"include_usage":"x"})", "stream_options.include_usage",
       "invalid_type", kParse},
      {R"("logit_bias":[])", "logit_bias", "invalid_type", kParse},
      {R"("thinking":true)", "thinking", "invalid_type", kParse},
      {R"("thinking":{})", "thinking.type", "missing_required_parameter", kParse},
      {R"("thinking":{"type":"auto"})", "thinking.type", "invalid_value", kParse},
      {R"("reasoning_effort":"huge")", "reasoning_effort", "invalid_value", kParse},
      {R"("reasoning_effort":0)", "reasoning_effort", "invalid_value", kParse},
      {R"("reasoning_effort":101)", "reasoning_effort", "invalid_value", kParse},
      {R"("tools":{})", "tools", "invalid_type", kParse},
      {R"("tools":[3])", "tools[0]", "invalid_type", kParse},
      {R"("tools":[{"type":"function","function":{}}])", "tools[0].function.name",
       "missing_required_parameter", kParse},
      {R"("tools":[{"type":"custom","custom":{}}])", "tools[0].type", "invalid_value", kParse},
      {R"("tool_choice":"some")", "tool_choice", "invalid_value", kParse},
      {R"("tool_choice":{"type":"function"})", "tool_choice.function", "missing_required_parameter",
       kParse},
      {R"("response_format":"text")", "response_format", "invalid_type", kParse},
      {R"("response_format":{"type":"xml"})", "response_format.type", "invalid_value", kParse},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"n"}})",
       "response_format.json_schema.schema", "missing_required_parameter", kParse},
      {R"("user":3)", "user", "invalid_type", kParse},
      {R"("stop_token_ids":["a"])", "stop_token_ids", "invalid_type", kParse},
      {R"("chat_template_kwargs":{"thinking":"yes"})", "chat_template_kwargs.thinking",
       "invalid_type", kParse},
      {R"("service_tier":"gold")", "service_tier", "invalid_value", kParse},
      {R"("sampling_mode":"greedy")", "sampling_mode", "invalid_value", kParse},
      {R"("logprobs_mode":"best")", "logprobs_mode", "invalid_value", kParse},
      {R"("allowed_token_ids":{})", "allowed_token_ids", "invalid_type", kParse},
      {R"("banned_token_ids":[1.5])", "banned_token_ids", "invalid_type", kParse},
      {R"("bad_words":["a",1])", "bad_words", "invalid_type", kParse},
  });
}

TEST(ChatRequest, ValuesOutOfRangeAreRefused) {
  ExpectFaults({
      {R"("temperature":2.1)", "temperature", "invalid_value"},
      {R"("temperature":-0.1)", "temperature", "invalid_value"},
      {R"("top_p":0)", "top_p", "invalid_value"},
      {R"("top_p":1.01)", "top_p", "invalid_value"},
      {R"("min_p":-0.1)", "min_p", "invalid_value"},
      {R"("repetition_penalty":0)", "repetition_penalty", "invalid_value"},
      {R"("frequency_penalty":2.1)", "frequency_penalty", "invalid_value"},
      {R"("presence_penalty":-2.1)", "presence_penalty", "invalid_value"},
      {R"("top_k":-2)", "top_k", "invalid_value"},
      {R"("n":0)", "n", "invalid_value"},
      {R"("n":129)", "n", "invalid_value"},
      {R"("max_tokens":0)", "max_tokens", "invalid_value"},
      {R"("max_tokens":393217)", "max_tokens", "invalid_value"},
      {R"("max_completion_tokens":0)", "max_completion_tokens", "invalid_value"},
      {R"("seed":9223372036854775808)", "seed", "invalid_value"},
      {R"("stop":"")", "stop", "invalid_value"},
      {R"("stop":["a",""])", "stop[1]", "invalid_value"},
      {R"("top_logprobs":3)", "top_logprobs", "invalid_value"},
      {R"("logprobs":true,"top_logprobs":21)", "top_logprobs", "invalid_value"},
      {R"("stream_options":{})", "stream_options", "invalid_value"},
      {R"("stop_token_ids":[129280])", "stop_token_ids", "invalid_value"},
      {R"("allowed_token_ids":[5,-1])", "allowed_token_ids", "invalid_value"},
      {R"("banned_token_ids":[129280])", "banned_token_ids", "invalid_value"},
      {R"("bad_words":["a",""])", "bad_words", "invalid_value"},
      {R"("prompt_cache_retention":"soon")", "prompt_cache_retention", "invalid_value"},
      {R"("prompt_cache_retention":"1h","prompt_cache_options":{"ttl":"2h"})",
       "prompt_cache_options.ttl", "invalid_value"},
      {R"("modalities":["text","audio"])", "modalities", "unsupported_parameter"},
      {R"("tools":[{"type":"function","function":{"name":"a b"}}])", "tools[0].function.name",
       "invalid_value"},
      {R"("tools":[{"type":"function","function":{"name":"f","parameters":{}}}])",
       "tools[0].function.parameters", "invalid_schema"},
      {R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"required")",
       "tool_choice", "unsupported_parameter"},
  });
  EXPECT_EQ(RefusedField(R"("stop":")" + std::string(1025, 'x') + "\"").param, "stop");
  EXPECT_EQ(RefusedField(R"("user":")" + std::string(513, 'x') + "\"").param, "user");
}

TEST(ChatRequest, FaultsInMessagesNameTheirPath) {
  const std::pair<std::string_view, std::string_view> faults[] = {
      {R"([])", "messages"},
      {R"("x")", "messages"},
      {R"([3])", "messages[0]"},
      {R"([{"content":"x"}])", "messages[0].role"},
      {R"([{"role":"robot","content":"x"}])", "messages[0].role"},
      {R"([{"role":"user"}])", "messages[0].content"},
      {R"([{"role":"user","content":null}])", "messages[0].content"},
      {R"([{"role":"user","content":[{"type":"text"}]}])", "messages[0].content[0].text"},
      {R"([{"role":"user","content":"a"},{"role":"user","content":[{"type":"input_audio"}]}])",
       "messages[1].content[0].type"},
      {R"([{"role":"user","content":[{"type":"image_url","image_url":"http://x"}]}])",
       "messages[0].content[0].image_url"},
      {R"([{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}])",
       "messages[0].content[0]"},
      {R"([{"role":"user","content":[{"type":"file","file_id":"f"}]}])", "messages[0].content[0]"},
      {R"([{"role":"assistant","content":[{"type":"image_url","image_url":{"url":"http://x"}}]}])",
       "messages[0].content"},
      {R"([{"role":"assistant"}])", "messages[0]"},
      {R"([{"role":"assistant","content":"a","tool_calls":[{"type":"function","function":{"name":"f","arguments":"{}"}}]}])",
       "messages[0].tool_calls[0].id"},
      {R"([{"role":"assistant","content":"a","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":{}}}]}])",
       "messages[0].tool_calls[0].function.arguments"},
      {R"([{"role":"tool","content":"a"}])", "messages[0].tool_call_id"},
      {R"([{"role":"tool","tool_call_id":"1","content":"a"}])", "messages[0].role"},
      {R"([{"role":"assistant","content":"a","prefix":true},{"role":"user","content":"b"}])",
       "messages[0].prefix"},
  };
  for (const auto& [messages, param] : faults) {
    const ApiError error = Refused(Body("", messages));
    EXPECT_EQ(error.status, 400) << messages;
    EXPECT_EQ(error.param.value_or(""), param) << messages << error.message;
  }
}

TEST(ChatRequest, NullMeansAbsentAndEmptyListsMeanNone) {
  const ChatRequest request = Accepted(
      R"("temperature":null,"tools":null,"stop":null,"stream":null,"stream_options":null,)"
      R"("thinking":null,"response_format":null,"logit_bias":{},"seed":null,"tool_choice":null,)"
      R"("user":null,"max_tokens":null,"n":null)");
  EXPECT_TRUE(request.conversation.thinking);
  EXPECT_FALSE(request.max_tokens.has_value());
  EXPECT_EQ(request.num_choices, 1);
  EXPECT_FALSE(request.constraint.has_value());
  const auto empty_calls =
      ParseChatRequest(Body("", R"([{"role":"assistant","content":"a","tool_calls":[]}])"), {});
  EXPECT_TRUE(empty_calls.has_value());
  EXPECT_EQ(Accepted(R"("tools":[])").conversation.tool_mode, ToolMode::kNone);
}

TEST(ChatRequest, SamplingFieldsReachTheEngineUnderTheHonourPolicy) {
  const ChatRequest request = Accepted(
      R"("temperature":0.5,"top_p":0.25,"top_k":7,"min_p":0.1,"repetition_penalty":1.5,)"
      R"("frequency_penalty":0.5,"presence_penalty":-0.5,"seed":9223372036854775807,"n":3,)"
      R"("logit_bias":{"5":-100,"129279":2.5},"stop_token_ids":[7,8],"min_tokens":2,)"
      R"("ignore_eos":true,"sampling_mode":"strict","logprobs":true,"top_logprobs":4,)"
      R"("allowed_token_ids":[3,4],"banned_token_ids":[9],"bad_words":["no"],)"
      R"("logprobs_mode":"processed")");
  const SamplingParams& sampling = request.sampling;
  EXPECT_FLOAT_EQ(sampling.temperature, 0.5f);
  EXPECT_FLOAT_EQ(sampling.top_p, 0.25f);
  EXPECT_EQ(sampling.top_k, 7);
  EXPECT_FLOAT_EQ(sampling.min_p, 0.1f);
  EXPECT_FLOAT_EQ(sampling.repetition_penalty, 1.5f);
  EXPECT_FLOAT_EQ(sampling.frequency_penalty, 0.5f);
  EXPECT_FLOAT_EQ(sampling.presence_penalty, -0.5f);
  EXPECT_EQ(sampling.seed, 9223372036854775807u);
  EXPECT_TRUE(sampling.has_seed);
  EXPECT_EQ(sampling.logit_bias,
            (std::vector<std::pair<int32_t, float>>{{5, -100.0f}, {129279, 2.5f}}));
  EXPECT_EQ(sampling.stop_token_ids, (std::vector<int32_t>{7, 8}));
  EXPECT_EQ(sampling.min_tokens, 2);
  EXPECT_EQ(request.parsing.num_tokens_without_stop, 2);
  EXPECT_TRUE(sampling.ignore_eos);
  EXPECT_EQ(sampling.mode, SamplingMode::kStrict);
  EXPECT_EQ(sampling.num_top_logprobs, 4);
  EXPECT_EQ(sampling.allowed_ids, (std::vector<int32_t>{3, 4}));
  EXPECT_EQ(sampling.banned_ids, std::vector<int32_t>{9});
  EXPECT_EQ(request.bad_words, std::vector<std::string>{"no"});
  EXPECT_EQ(sampling.logprobs_kind, LogprobsKind::kProcessed);
  EXPECT_EQ(request.num_choices, 3);
  EXPECT_EQ(Accepted(R"("logprobs":true)").sampling.num_top_logprobs, 0);
  EXPECT_EQ(Accepted("").sampling.num_top_logprobs, -1);
}

TEST(ChatRequest, DeepSeekPolicyOverridesSampling) {
  ChatRequestOptions options;
  options.sampling_policy = SamplingPolicy::kDeepSeek;
  const SamplingParams thinking =
      Accepted(R"("temperature":0.2,"top_p":0.5,"presence_penalty":1)", options).sampling;
  EXPECT_EQ(thinking.temperature, 1.0f);
  EXPECT_EQ(thinking.top_p, 0.95f);
  EXPECT_EQ(thinking.presence_penalty, 0.0f);
  const SamplingParams plain =
      Accepted(R"("temperature":0.2,"top_p":0.5,"thinking":{"type":"disabled"})", options).sampling;
  EXPECT_EQ(plain.temperature, 0.2f);
  EXPECT_EQ(plain.top_p, 1.0f);
}

TEST(ChatRequest, NewTokenLimitWinsOverTheOldOne) {
  EXPECT_EQ(Accepted(R"("max_tokens":7,"max_completion_tokens":5)").max_tokens, 5);
  EXPECT_EQ(Accepted(R"("max_tokens":7)").max_tokens, 7);
  ChatRequestOptions prewarm;
  prewarm.allow_zero_max_tokens = true;
  EXPECT_EQ(Accepted(R"("max_tokens":0)", prewarm).max_tokens, 0);
}

TEST(ChatRequest, EffortAndThinkingDecideTogether) {
  struct Case {
    std::string_view fields;
    bool default_thinking;
    bool thinking;
    int32_t effort;
  };
  for (const Case& c : std::vector<Case>{
           {"", true, true, 75},
           {"", false, false, 75},
           {R"("reasoning_effort":"none")", true, false, 75},
           {R"("reasoning_effort":"low")", false, true, 50},
           {R"("reasoning_effort":"minimal")", true, true, 50},
           {R"("reasoning_effort":"xhigh")", true, true, 75},
           {R"("reasoning_effort":"ultra")", true, true, 100},
           {R"("reasoning_effort":42)", true, true, 42},
           {R"("thinking":{"type":"disabled"},"reasoning_effort":"max")", true, false, 100},
           {R"("thinking":{"type":"enabled"},"reasoning_effort":"none")", false, true, 75},
           {R"("thinking":{"type":"adaptive","budget_tokens":5})", false, true, 75},
           {R"("chat_template_kwargs":{"enable_thinking":false})", true, false, 75},
           {R"("chat_template_kwargs":{"thinking":true,"reasoning_effort":"low","x":1})", false,
            true, 50},
           {R"("chat_template_kwargs":{"thinking":false},"thinking":{"type":"enabled"})", false,
            true, 75}}) {
    ChatRequestOptions options;
    options.default_thinking = c.default_thinking;
    const ChatRequest request = Accepted(c.fields, options);
    EXPECT_EQ(request.conversation.thinking, c.thinking) << c.fields;
    if (c.thinking) {
      EXPECT_EQ(request.conversation.effort, c.effort) << c.fields;
    }
  }
}

TEST(ChatRequest, AllowedToolsFilterWhatIsListed) {
  constexpr std::string_view kTools =
      R"("tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g"}}],)";
  const ChatRequest request = Accepted(
      std::string(kTools) +
      R"("tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"type":"function","function":{"name":"g"}}]}})");
  EXPECT_EQ(request.tool_names, (std::vector<std::string>{"g"}));
  EXPECT_EQ(request.conversation.tool_mode, ToolMode::kAuto);
  EXPECT_EQ(
      RefusedField(
          std::string(kTools) +
          R"("tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"type":"function","function":{"name":"h"}}]}})")
          .param,
      "tool_choice.allowed_tools.tools");
}

TEST(ChatRequest, ForcedToolsInThinkingNeedTheSwitch) {
  constexpr std::string_view kFields =
      R"("tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g"}}],)"
      R"("tool_choice":{"type":"function","function":{"name":"g"}})";
  EXPECT_EQ(RefusedField(kFields).message, "Thinking mode does not support this tool_choice");
  ChatRequestOptions options;
  options.forced_tools_in_thinking = true;
  const ChatRequest request = Accepted(kFields, options);
  EXPECT_TRUE(request.force_calls_after_reasoning);
  EXPECT_FALSE(request.parsing.starts_in_tool_calls);
  EXPECT_EQ(request.forced_tool, "g");
  EXPECT_EQ(request.tool_names, (std::vector<std::string>{"g"}));
  ASSERT_TRUE(request.constraint.has_value());
  EXPECT_EQ(request.constraint->kind, ConstraintKind::kToolCallRequired);
}

TEST(ChatRequest, StructuredOutputsHoldOneConstraint) {
  const std::pair<std::string_view, ConstraintKind> accepted[] = {
      {R"("structured_outputs":{"json":{"type":"object"}})", ConstraintKind::kJson},
      {R"("structured_outputs":{"json":"{\"type\":\"object\"}"})", ConstraintKind::kJson},
      {R"("structured_outputs":{"regex":"a+"})", ConstraintKind::kRegex},
      {R"("structured_outputs":{"choice":["a","b"]})", ConstraintKind::kChoice},
      {R"("structured_outputs":{"grammar":"root ::= \"a\""})", ConstraintKind::kGrammar},
      {R"("grammar":"root ::= \"a\"")", ConstraintKind::kGrammar},
      {R"("json_schema":{"type":"object"})", ConstraintKind::kJson},
  };
  for (const auto& [fields, kind] : accepted) {
    const ChatRequest request = Accepted(fields);
    ASSERT_TRUE(request.answer_constraint.has_value()) << fields;
    EXPECT_EQ(request.answer_constraint->kind, kind) << fields;
    EXPECT_EQ(request.conversation.response_schema_json, std::nullopt);
  }
  EXPECT_EQ(Accepted(R"("structured_outputs":{"choice":["a","b"]})").constraint->schema,
            R"(["a","b"])");
  for (std::string_view fields :
       {R"("structured_outputs":{})", R"("structured_outputs":{"json":{},"regex":"a"})",
        R"("structured_outputs":{"json":{"type":"zzz"}})", R"("structured_outputs":{"json":"{"})",
        R"("structured_outputs":{"choice":[]})", R"("structured_outputs":{"choice":[1]})",
        R"("structured_outputs":{"regex":""})", R"("grammar":"a","json_schema":{})",
        R"("structured_outputs":{"regex":"a"},"response_format":{"type":"json_object"})"}) {
    EXPECT_EQ(RefusedField(fields).status, 400) << fields;
  }
}

TEST(ChatRequest, MalformedExpressionsAreRefusedBeforeTheyAreCompiled) {
  EXPECT_EQ(RefusedField(R"("response_format":{"type":"regex","regex":"("})").param,
            "response_format.regex");
  EXPECT_EQ(RefusedField(R"("structured_outputs":{"regex":"("})").param,
            "structured_outputs.regex");
  ChatRequestOptions lenient;
  lenient.check_regex = false;
  EXPECT_EQ(
      Accepted(R"("response_format":{"type":"regex","regex":"("})", lenient).constraint->schema,
      "(");
}

TEST(ChatRequest, AnswerConstraintStaysBesideTools) {
  const ChatRequest request = Accepted(
      R"("tools":[{"type":"function","function":{"name":"f"}}],)"
      R"("response_format":{"type":"json_schema","json_schema":{"schema":{"type":"array"}}})");
  EXPECT_EQ(request.constraint->kind, ConstraintKind::kToolCall);
  EXPECT_EQ(request.answer_constraint->kind, ConstraintKind::kJson);
  EXPECT_EQ(request.answer_constraint->schema, R"({"type":"array"})");
}

TEST(ChatRequest, RepeatedKeysAreRefusedWhereTheyAreRead) {
  const ApiError error =
      Refused(R"({"model":"a","model":"b","messages":[{"role":"user","content":"x"}]})");
  EXPECT_EQ(error.code, "invalid_json");
  EXPECT_EQ(error.param, "model");
  EXPECT_EQ(Refused(Body("", R"([{"role":"user","content":"x","content":"y"}])")).param,
            "messages[0].content");
  Accepted(R"("zz":1,"zz":2)");
  Accepted(
      R"("tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","x":1,"x":2}}}])");
  ChatRequestOptions lenient;
  lenient.reject_duplicate_keys = false;
  EXPECT_EQ(Accepted(R"("n":1,"n":2)", lenient).num_choices, 2);
}

TEST(ChatRequest, UnknownFieldsAreCountedOrRefused) {
  const ChatRequest request = Accepted(R"("foo":1,"bar":2,"store":true,"metadata":{})");
  EXPECT_EQ(request.unknown_fields, (std::vector<std::string>{"foo", "bar"}));
  EXPECT_EQ(request.ignored_fields, (std::vector<std::string>{"metadata", "store"}));
  ChatRequestOptions strict;
  strict.strict_fields = true;
  EXPECT_EQ(RefusedField(R"("foo":1)", strict).param, "foo");
  Accepted(R"("store":true)", strict);
}

TEST(ChatRequest, UnknownModelIsNotFound) {
  ChatRequestOptions options;
  options.served_models = "a, b";
  options.resolve_model = [](std::string_view model) -> std::optional<PromptForm> {
    if (model == "a") return PromptForm::kV4;
    return std::nullopt;
  };
  const ApiError error = RefusedField("", options);
  EXPECT_EQ(error.status, 404);
  EXPECT_EQ(error.code, "model_not_found");
  EXPECT_NE(error.message.find("a, b"), std::string::npos);
  const auto known =
      ParseChatRequest(R"({"model":"a","messages":[{"role":"user","content":"x"}]})", options);
  ASSERT_TRUE(known.has_value());
  EXPECT_EQ(known->conversation.form, PromptForm::kV4);
}

TEST(ChatRequest, CountsAreBounded) {
  ChatRequestOptions options;
  options.max_messages = 2;
  options.max_parts = 3;
  options.max_images = 1;
  options.max_tools = 1;
  const auto refuse = [&](std::string_view messages, std::string_view fields = {}) {
    return Refused(Body(fields, messages), options).message;
  };
  EXPECT_NE(
      refuse(
          R"([{"role":"user","content":"a"},{"role":"user","content":"a"},{"role":"user","content":"a"}])")
          .find("Too many messages"),
      std::string::npos);
  EXPECT_NE(
      refuse(
          R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"a"},{"type":"text","text":"a"},{"type":"text","text":"a"}]}])")
          .find("Too many messages"),
      std::string::npos);
  EXPECT_NE(
      refuse(
          R"([{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://a"}},{"type":"image_url","image_url":{"url":"http://a"}}]}])")
          .find("Too many images"),
      std::string::npos);
  EXPECT_NE(
      refuse(
          kUser,
          R"("tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g"}}])")
          .find("array too long"),
      std::string::npos);
}

TEST(ChatRequest, CacheBreakpointsAreBoundedPerRequest) {
  const auto body = [](int count, std::string_view mark) {
    std::string parts = R"({"type":"text","text":"a","prompt_cache_breakpoint":false})";
    for (int i = 0; i < count; ++i) {
      parts += R"(,{"type":"text","text":"a","prompt_cache_breakpoint":)";
      parts.append(mark).append("}");
    }
    return Body("", R"([{"role":"user","content":[)" + parts + "]}]");
  };
  EXPECT_TRUE(ParseChatRequest(body(4, "true"), {}).has_value());
  EXPECT_TRUE(ParseChatRequest(body(9, "null"), {}).has_value());
  for (const char* mark : {"true", "{}"}) {
    const ApiError error = Refused(body(5, mark));
    EXPECT_EQ(error.param, "messages[0].content[5].prompt_cache_breakpoint");
    EXPECT_EQ(error.code, "invalid_value");
  }
  EXPECT_EQ(Refused(body(1, "3")).code, "invalid_type");
}

TEST(ChatRequest, ContinuationStartsTheParserWhereTheTextStands) {
  const auto start = [](std::string_view message, std::string_view fields = {}) {
    const auto request = ParseChatRequest(
        Body(fields, R"([{"role":"user","content":"q"},)" + std::string(message) + "]"), {});
    EXPECT_TRUE(request.has_value()) << message;
    return request->parsing.start;
  };
  EXPECT_EQ(start(R"({"role":"assistant","content":"a","prefix":true})"),
            OutputStart::kContentContinuation);
  EXPECT_EQ(start(R"({"role":"assistant","content":"","reasoning":"r","prefix":true})"),
            OutputStart::kReasoningContinuation);
  EXPECT_EQ(start(R"({"role":"assistant","content":"","prefix":true})"),
            OutputStart::kReasoningStart);
  EXPECT_EQ(start(R"({"role":"assistant","content":"a"})", R"("continue_final_message":true)"),
            OutputStart::kContentContinuation);
  EXPECT_EQ(start(R"({"role":"assistant","content":"a","prefix":true})",
                  R"("thinking":{"type":"disabled"})"),
            OutputStart::kContentStart);
  EXPECT_EQ(RefusedField(R"("continue_final_message":true)").param, "continue_final_message");
}

TEST(ChatRequest, MissingReasoningIsRefusedOnlyWithTheSwitch) {
  const std::string body = Body(
      "",
      R"([{"role":"user","content":"q"},{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"1","content":"r"}])");
  EXPECT_TRUE(ParseChatRequest(body, {}).has_value());
  ChatRequestOptions strict;
  strict.reasoning_passback = ReasoningPassback::kReject;
  EXPECT_EQ(Refused(body, strict).param, "messages[1].reasoning_content");
}

TEST(ChatRequest, TestHookFieldsNeedTheSwitch) {
  constexpr std::string_view kFields =
      R"("test_force_ids":[1,2],"test_commit":"all","test_force_accept":[0,3],"test_force_text":"x")";
  EXPECT_TRUE(Accepted(kFields).test_hooks.force_ids.empty());
  ChatRequestOptions options;
  options.test_hooks = true;
  const ChatRequest request = Accepted(kFields, options);
  EXPECT_EQ(request.test_hooks.force_ids, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(request.test_hooks.force_accept, (std::vector<int32_t>{0, 3}));
  EXPECT_EQ(request.test_hooks.force_text, "x");
  EXPECT_EQ(request.test_hooks.commit, -1);
  EXPECT_EQ(RefusedField(R"("test_commit":9)", options).param, "test_commit");
}

TEST(ChatRequest, TokenLimitDefaultsFollowModeAndEffort) {
  const ChatRequestOptions options;
  const auto limit = [&](std::string_view fields, int64_t prompt, int64_t context,
                         const ChatRequestOptions& with) {
    return ResolveMaxTokens(Accepted(fields), with, prompt, context);
  };
  EXPECT_EQ(*limit(R"("thinking":{"type":"disabled"})", 10, 1000000, options), 8192);
  EXPECT_EQ(*limit("", 10, 1000000, options), 65536);
  EXPECT_EQ(*limit(R"("reasoning_effort":"max")", 10, 1000000, options), 131072);
  EXPECT_EQ(*limit("", 10, 100, options), 90);
  EXPECT_EQ(*limit(R"("max_tokens":500)", 10, 100, options), 90);
  EXPECT_EQ(*limit(R"("max_tokens":50)", 10, 100, options), 50);
  ChatRequestOptions fixed;
  fixed.default_max_tokens = 33;
  EXPECT_EQ(*limit("", 10, 100, fixed), 33);
  const auto full = limit("", 100, 100, options);
  ASSERT_FALSE(full.has_value());
  EXPECT_EQ(full.error().code, "context_length_exceeded");
  EXPECT_EQ(full.error().num_prompt_tokens, 100);
  EXPECT_EQ(full.error().num_context_tokens, 100);
}

TEST(ChatRequest, ImagesAreListedInReadingOrder) {
  const auto request = ParseChatRequest(
      Body(
          "",
          R"([{"role":"system","content":[{"type":"image_url","image_url":{"url":"https://a/1"}}]},{"role":"user","content":[{"type":"text","text":"x"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA","detail":"low"}}]}])"),
      {});
  ASSERT_TRUE(request.has_value());
  ASSERT_EQ(request->images.size(), 2u);
  EXPECT_FALSE(request->images[0].is_data_url);
  EXPECT_EQ(request->images[1].detail, ImageDetail::kLow);
  EXPECT_EQ(request->images[1].path, ".messages[1]");
  EXPECT_EQ(BuildPromptText(Render(request->conversation)).image_indexes,
            (std::vector<int32_t>{0, 1}));
}

TEST(ChatRequest, C02_ToolsOfOneNameInTwoNamespacesStayDistinct) {
  constexpr std::string_view kTools =
      R"("tools":[{"type":"function","namespace":"inventory","function":{"name":"get"}},{"type":"function","function":{"name":"get","namespace":"billing"}}])";
  const ChatRequest request = Accepted(kTools);
  EXPECT_EQ(request.tool_names, (std::vector<std::string>{"inventory::get", "billing::get"}));
  EXPECT_NE(request.constraint->schema.find("billing::get"), std::string::npos);
  const std::string prompt = BuildPromptText(Render(request.conversation)).prompt;
  EXPECT_NE(prompt.find("{\"name\": \"inventory::get\""), std::string::npos);
  EXPECT_NE(prompt.find("{\"name\": \"billing::get\""), std::string::npos);

  const ChatRequest named = Accepted(
      std::string(kTools) +
      R"(,"thinking":{"type":"disabled"},"tool_choice":{"type":"function","namespace":"billing","function":{"name":"get"}})");
  EXPECT_EQ(named.tool_names, (std::vector<std::string>{"billing::get"}));

  for (
      std::string_view tools :
      {R"("tools":[{"type":"function","namespace":"a","function":{"name":"f","namespace":"b"}}])",
       R"("tools":[{"type":"function","namespace":"","function":{"name":"f"}}])",
       R"("tools":[{"type":"function","namespace":"a::b","function":{"name":"f"}}])",
       R"("tools":[{"type":"function","namespace":"a","function":{"name":"f"}},{"type":"function","namespace":"a","function":{"name":"f"}}])"}) {
    EXPECT_EQ(RefusedField(tools).status, 400) << tools;
  }
  const auto reminder = ParseChatRequest(
      Body("", R"([{"role":"latest_reminder","content":"r"},{"role":"user","content":"u"}])"), {});
  EXPECT_TRUE(reminder.has_value());
}

TEST(ChatRequest, F01_ZeroMaxTokensIsRefusedEveryTime) {
  EXPECT_EQ(RefusedField(R"("max_tokens":0)").status, 400);
  EXPECT_EQ(RefusedField(R"("max_tokens":0)").status, 400);
}

TEST(ChatRequest, F07_EmptyMessagesNameTheField) {
  const ApiError error = Refused(Body("", "[]"));
  EXPECT_EQ(error.status, 400);
  EXPECT_EQ(error.param, "messages");
}

TEST(ChatRequest, G01_LogitBiasKeysMustBeTokenIds) {
  for (std::string_view fields :
       {R"("logit_bias":{"AI":-100})", R"("logit_bias":{"":1})", R"("logit_bias":{"1.5":1})",
        R"("logit_bias":{"-1":1})", R"("logit_bias":{" 1":1})"}) {
    const ApiError error = RefusedField(fields);
    EXPECT_EQ(error.status, 400) << fields;
    EXPECT_EQ(error.param, "logit_bias") << fields;
  }
}

TEST(ChatRequest, G02_LogitBiasBeyondTheVocabularyNamesTheId) {
  const ApiError error = RefusedField(R"("logit_bias":{"129280":1})");
  EXPECT_EQ(error.status, 400);
  EXPECT_NE(error.message.find("129280"), std::string::npos);
  EXPECT_EQ(RefusedField(R"("logit_bias":{"1":101})").status, 400);
}

TEST(ChatRequest, G04_TopKMinusOneAndZeroMeanOff) {
  EXPECT_EQ(Accepted(R"("top_k":-1)").sampling.top_k, 0);
  EXPECT_EQ(Accepted(R"("top_k":0)").sampling.top_k, 0);
  EXPECT_EQ(Accepted(R"("top_k":1)").sampling.top_k, 1);
}

TEST(ChatRequest, HugeNestedBodyEndsAtTheDepthLimit) {
  const std::string body(100'000'000, '[');
  const ApiError error = Refused(body);
  EXPECT_EQ(error.code, "invalid_json");
  EXPECT_EQ(error.stage, ErrorStage::kParse);
}

}  // namespace
}  // namespace deepinfer
