// The fields of an Anthropic Messages body with their types checked and nothing else (stage
// "parse"). Internal to the request validator.
// Thread rule: values of one request. Pointers reach into its JSON document.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "server/chat_body.h"
#include "server/messages_request.h"

namespace deepinfer {

struct MessagesBlock {
  enum class Kind : unsigned char {
    kText,
    kImage,
    kDocument,
    kThinking,
    kToolUse,
    kToolResult,
    kToolReference,
    kToolAddition,
    kServerToolUse,
    kServerToolResult,
    kRedactedThinking,
  };

  Kind kind = Kind::kText;
  // Text or thinking; media type of a document; URL of an image; name of a referenced or added
  // tool.
  std::string text;
  std::string media_type;                     // kImage: of base64 data, else ""
  bool is_file_image = false;                 // kImage: named by a file id
  std::string id;                             // kToolUse, kToolResult
  std::string name;                           // kToolUse
  const boost::json::value* input = nullptr;  // kToolUse
  std::vector<MessagesBlock> content;         // kToolResult
  bool marked = false;                        // cache_control
};

struct MessagesMessage {
  enum class Role : unsigned char { kUser, kAssistant, kSystem };

  Role role = Role::kUser;
  std::vector<MessagesBlock> blocks;
};

struct MessagesBody {
  ChatBody common;                    // everything but its messages
  std::vector<MessagesBlock> system;  // texts
  bool has_system = false;            // the field is there, with texts or without
  std::vector<MessagesMessage> messages;
  std::vector<size_t> server_tools;  // places in `tools`; not in common.tools
  std::vector<std::string> server_tool_names;
  size_t num_tools = 0;  // server tools included
  CacheMarks cache_marks;
  bool marks_end = false;  // cache_control of the body: behind its last message
};

// Reads the whole body; faults go to state->error.
MessagesBody ReadMessagesBody(const boost::json::value& root, const ChatRequestOptions& options,
                              ReadState* state);

// Parts of it that have their own file. A string counts as one text block.
std::vector<MessagesMessage> ReadMessagesList(ObjectReader* body, const ChatRequestOptions& options,
                                              ReadState* state, CacheMarks* marks);
std::vector<MessagesBlock> ReadMessagesSystem(ObjectReader* body, ReadState* state,
                                              CacheMarks* marks);
// `cache_control` of a block, a tool or the body: true if it is there.
bool ReadCacheControl(ObjectReader* holder, CacheMarks* marks);

}  // namespace deepinfer
