// The fields of a Responses body with their types checked and nothing else (stage "parse").
// Internal to the request validator.
// Thread rule: values of one request. Pointers reach into its JSON document.
#pragma once

#include <boost/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "server/chat_body.h"
#include "server/responses_request.h"

namespace deepinfer {

struct ResponsesPart {
  enum class Kind : unsigned char { kText, kImage, kFile };

  Kind kind = Kind::kText;
  std::string text;
  std::optional<std::string> image_url;
  std::optional<std::string> file_id;
  ImageDetail detail = ImageDetail::kHigh;
  bool cache_breakpoint = false;
};

struct ResponsesItem {
  enum class Kind : unsigned char {
    kUser,
    kAssistant,
    kSystem,
    kDeveloper,
    kReasoning,     // text
    kCall,          // call_id, name, text: the arguments
    kOutput,        // call_id, parts, added_tools
    kInterruption,  // no text, but nothing may wait across it
    kIgnored,
  };

  Kind kind = Kind::kIgnored;
  std::vector<ResponsesPart> parts;
  std::string text;
  std::string call_id;
  bool has_call_id = true;
  std::string name;
  std::vector<std::string> added_tools;  // names in the prompt
};

struct ResponsesBody {
  ChatBody common;  // everything but its messages
  std::map<std::string, ResponsesTool, std::less<>> tools;
  std::optional<std::string> instructions;
  bool has_input = false;
  bool input_is_list = false;
  std::vector<ResponsesItem> items;
  std::optional<std::string> unsupported;  // the first field that asks for kept state
  bool has_server_tools = false;
  bool takes_any_custom_tool = true;  // false: apply_patch alone, as in the official rules
  std::string echo_json;
};

// Reads the whole body; faults go to state->error. `form` decides how names with a namespace read.
ResponsesBody ReadResponsesBody(const boost::json::value& root, PromptForm form,
                                const ChatRequestOptions& options, ReadState* state);

// Parts of it that have their own file.
void ReadResponsesInput(ObjectReader* body, PromptForm form, ReadState* state,
                        ResponsesBody* result);
void ReadResponsesTools(ObjectReader* body, PromptForm form, ReadState* state,
                        ResponsesBody* result);
// The tools of a tool_search_output: adds them to the body as deferred ones, their names to `item`,
// and sets its text to their JSON.
void ReadFoundTools(const boost::json::value& tools, const std::string& path, PromptForm form,
                    ReadState* state, ResponsesBody* result, ResponsesItem* item);
// "ns::name" or, in older prompts, "ns__name".
std::string JoinToolName(PromptForm form, std::string_view name_space, std::string_view name);
// Members of the response object that repeat the request.
std::string ResponsesEcho(const boost::json::object& body);

}  // namespace deepinfer
