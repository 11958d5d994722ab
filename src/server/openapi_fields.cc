#include "server/openapi_fields.h"

#include <boost/json.hpp>

#include "base/json_writer.h"
#include "server/chat_body.h"
#include "server/completions_body.h"
#include "server/field_reader.h"
#include "server/field_recorder.h"
#include "server/messages_body.h"
#include "server/responses_body.h"

namespace deepinfer {
namespace {

namespace json = boost::json;

// Bodies that lead a validator to every field: one element of each kind in every array.
constexpr std::string_view kChatProbe = R"({
  "messages":[{"role":"user","content":[{"type":"text"},{"type":"image_url","image_url":{}}]},
              {"role":"assistant","tool_calls":[{"function":{}}]},{"role":"tool"},
              {"role":"latest_reminder"}],
  "tools":[{"type":"function","function":{}}]})";
constexpr std::string_view kMessagesProbe = R"({
  "messages":[{"role":"user","content":[{"type":"text"},{"type":"image","source":{}},
                {"type":"tool_result"}]},
              {"role":"assistant","content":[{"type":"thinking"},{"type":"tool_use"}]}],
  "tools":[{}]})";
constexpr std::string_view kResponsesProbe = R"({
  "input":[{"type":"message","role":"user","content":[{"type":"input_text"}]},
           {"type":"reasoning"},{"type":"function_call"},{"type":"function_call_output"},
           {"type":"custom_tool_call"},{"type":"custom_tool_call_output"}],
  "tools":[{"type":"function"},{"type":"custom"}]})";
constexpr std::string_view kNoProbe = "{}";

template <typename ReadBody>
std::string Record(std::string_view probe, const ReadBody& read) {
  FieldRecorder recorder;
  ReadState state;
  state.reject_duplicate_keys = false;
  state.recorder = &recorder;
  const json::value root = json::parse(probe);
  read(root, &state);
  std::string schema;
  JsonWriter writer(&schema);
  recorder.WriteSchema(&writer);
  return schema;
}

constexpr std::string_view kTokenizeSchema =
    R"({"type":"object","properties":{"prompt":{"type":"string"},"messages":{"type":"array"},)"
    R"("add_special_tokens":{"type":["boolean","null"]},"model":{"type":["string","null"]}}})";
constexpr std::string_view kDetokenizeSchema =
    R"({"type":"object","required":["tokens"],"properties":{"tokens":{"type":"array",)"
    R"("items":{"type":"integer","minimum":0}},"model":{"type":["string","null"]}}})";

bool StripSuffix(std::string_view suffix, std::string_view* route) {
  if (!route->ends_with(suffix)) return false;
  route->remove_suffix(suffix.size());
  return true;
}

}  // namespace

std::string RequestSchemaOf(std::string_view route) {
  if (!StripSuffix("/render", &route)) StripSuffix("/count_tokens", &route);
  const ChatRequestOptions options;
  if (route == "/v1/chat/completions") {
    return Record(kChatProbe, [&](const json::value& root, ReadState* state) {
      ReadChatBody(root, options, state);
    });
  }
  if (route == "/v1/messages") {
    return Record(kMessagesProbe, [&](const json::value& root, ReadState* state) {
      ReadMessagesBody(root, options, state);
    });
  }
  if (route == "/v1/responses") {
    return Record(kResponsesProbe, [&](const json::value& root, ReadState* state) {
      ReadResponsesBody(root, PromptForm::kV41, options, state);
    });
  }
  if (route == "/v1/completions") {
    return Record(kNoProbe, [&](const json::value& root, ReadState* state) {
      ReadCompletionsBody(root, options, {}, state);
    });
  }
  if (route == "/tokenize") return std::string(kTokenizeSchema);
  if (route == "/detokenize") return std::string(kDetokenizeSchema);
  return R"({"type":"object"})";
}

}  // namespace deepinfer
