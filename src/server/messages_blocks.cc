// Content blocks of an Anthropic Messages body (api.md §10).
#include "server/field_reader.h"
#include "server/messages_body.h"

namespace deepinfer {
namespace {

namespace json = boost::json;
using Kind = MessagesBlock::Kind;

constexpr std::string_view kUnknownMediaType = "unknown";

// What a reader of blocks carries along.
struct BlockContext {
  const ChatRequestOptions& options;
  ReadState* state;
  CacheMarks* marks;
};

// Blocks of a message; the order is that of `Kind` with the ones only results hold left out.
const std::vector<std::string_view>& MessageBlockNames() {
  static const std::vector<std::string_view> kNames = {"text",
                                                       "image",
                                                       "document",
                                                       "thinking",
                                                       "tool_use",
                                                       "tool_result",
                                                       "server_tool_use",
                                                       "web_search_tool_result",
                                                       "tool_addition",
                                                       "redacted_thinking"};
  return kNames;
}

Kind MessageBlockKind(size_t name_index) {
  constexpr Kind kKinds[] = {
      Kind::kText,         Kind::kImage,           Kind::kDocument,      Kind::kThinking,
      Kind::kToolUse,      Kind::kToolResult,      Kind::kServerToolUse, Kind::kServerToolResult,
      Kind::kToolAddition, Kind::kRedactedThinking};
  return kKinds[name_index];
}

void ReadImage(ObjectReader* block, ReadState* state, MessagesBlock* result) {
  static const std::vector<std::string_view> kSources = {"base64", "url", "file"};
  static const std::vector<std::string_view> kTypes = {"image/jpeg", "image/jpg", "image/png",
                                                       "image/gif", "image/webp"};
  const json::value* value = block->Require("source");
  if (value == nullptr) return;
  ObjectReader source(state, *value, block->PathOf("source"));
  switch (source.RequiredOneOf("type", kSources)) {
    case 0:
      result->media_type = kTypes[source.RequiredOneOf("media_type", kTypes)];
      if (result->media_type == "image/jpg") result->media_type = "image/jpeg";
      result->text = source.RequiredString("data");
      break;
    case 1:
      result->text = source.RequiredString("url");
      break;
    default:
      result->is_file_image = true;
      result->text = source.RequiredString("file_id");
  }
}

void ReadDocument(ObjectReader* block, ReadState* state, MessagesBlock* result) {
  const json::value* value = block->Require("source");
  if (value == nullptr) return;
  ObjectReader source(state, *value, block->PathOf("source"));
  result->text = source.String("media_type").value_or(std::string(kUnknownMediaType));
}

void ReadToolAddition(ObjectReader* block, ReadState* state, MessagesBlock* result) {
  static const std::vector<std::string_view> kTypes = {"tool_reference"};
  const json::value* value = block->Require("tool");
  if (value == nullptr) return;
  ObjectReader tool(state, *value, block->PathOf("tool"));
  tool.RequiredOneOf("type", kTypes);
  result->text = tool.RequiredString("name");
}

MessagesBlock ReadResultBlock(const json::value& value, const std::string& path,
                              const BlockContext& context) {
  static const std::vector<std::string_view> kTypes = {"text", "image", "document",
                                                       "tool_reference"};
  ObjectReader block(context.state, value, path);
  MessagesBlock result;
  switch (block.RequiredOneOf("type", kTypes)) {
    case 0:
      result.text = block.RequiredString("text");
      break;
    case 1:
      result.kind = Kind::kImage;
      ReadImage(&block, context.state, &result);
      break;
    case 2:
      result.kind = Kind::kDocument;
      ReadDocument(&block, context.state, &result);
      break;
    default:
      result.kind = Kind::kToolReference;
      result.text = block.RequiredString("tool_name");
  }
  result.marked = ReadCacheControl(&block, context.marks);
  return result;
}

// A string or an array of blocks; a string is one text block.
template <typename ReadOne>
void ReadContent(ObjectReader* holder, const json::value& content, ReadState* state,
                 ReadOne&& read_one, std::vector<MessagesBlock>* blocks) {
  if (content.is_string()) {
    blocks->emplace_back().text = content.get_string();
    return;
  }
  if (!content.is_array()) {
    holder->WrongType("content", "a string or an array");
    return;
  }
  const json::array& array = content.get_array();
  blocks->reserve(array.size());
  for (size_t i = 0; i < array.size() && !state->error; ++i) {
    blocks->push_back(read_one(array[i], IndexPath(holder->PathOf("content"), i)));
  }
}

void ReadToolResult(ObjectReader* block, const BlockContext& context, MessagesBlock* result) {
  result->id = block->RequiredString("tool_use_id");
  block->Bool("is_error");
  const json::value* content = block->Find("content");
  if (content == nullptr) return;
  ReadContent(
      block, *content, context.state,
      [&](const json::value& value, const std::string& path) {
        return ReadResultBlock(value, path, context);
      },
      &result->content);
}

MessagesBlock ReadBlock(const json::value& value, const std::string& path,
                        const BlockContext& context) {
  ObjectReader block(context.state, value, path);
  MessagesBlock result;
  result.kind = MessageBlockKind(block.RequiredOneOf("type", MessageBlockNames()));
  switch (result.kind) {
    case Kind::kText:
      result.text = block.RequiredString("text");
      break;
    case Kind::kImage:
      ReadImage(&block, context.state, &result);
      break;
    case Kind::kDocument:
      ReadDocument(&block, context.state, &result);
      break;
    case Kind::kThinking:
      result.text = block.RequiredString("thinking");
      block.String("signature");
      break;
    case Kind::kToolUse:
      result.id = block.RequiredString("id");
      result.name = block.RequiredString("name");
      result.input = block.Require("input");
      break;
    case Kind::kToolResult:
      ReadToolResult(&block, context, &result);
      break;
    case Kind::kServerToolUse:
      block.RequiredString("id");
      block.RequiredString("name");
      block.Require("input");
      break;
    case Kind::kServerToolResult:
      block.RequiredString("tool_use_id");
      block.Require("content");
      break;
    case Kind::kToolAddition:
      ReadToolAddition(&block, context.state, &result);
      break;
    case Kind::kRedactedThinking:
      if (!context.options.messages_extensions) block.WrongType("type", "another block");
      break;
    case Kind::kToolReference:
      break;
  }
  result.marked = ReadCacheControl(&block, context.marks);
  return result;
}

MessagesMessage ReadMessage(const json::value& value, const std::string& path,
                            const BlockContext& context) {
  static const std::vector<std::string_view> kRoles = {"user", "assistant", "system"};
  ObjectReader message(context.state, value, path);
  MessagesMessage result;
  result.role = static_cast<MessagesMessage::Role>(message.RequiredOneOf("role", kRoles));
  const json::value* content = message.Require("content");
  if (content == nullptr) return result;
  ReadContent(
      &message, *content, context.state,
      [&](const json::value& block, const std::string& block_path) {
        return ReadBlock(block, block_path, context);
      },
      &result.blocks);
  return result;
}

}  // namespace

bool ReadCacheControl(ObjectReader* holder, CacheMarks* marks) {
  static const std::vector<std::string_view> kTypes = {"ephemeral"};
  static const std::vector<std::string_view> kLifetimes = {"5m", "1h"};
  auto control = holder->Object("cache_control");
  if (!control) return false;
  control->RequiredOneOf("type", kTypes);
  ++marks->count;
  marks->last_lives_1h = control->OneOf("ttl", kLifetimes).value_or(0) == 1;
  return true;
}

std::vector<MessagesMessage> ReadMessagesList(ObjectReader* body, const ChatRequestOptions& options,
                                              ReadState* state, CacheMarks* marks) {
  std::vector<MessagesMessage> messages;
  const json::value* value = body->Require("messages");
  if (value == nullptr) return messages;
  if (!value->is_array()) {
    body->WrongType("messages", "an array");
    return messages;
  }
  const BlockContext context{options, state, marks};
  const json::array& array = value->get_array();
  messages.reserve(array.size());
  for (size_t i = 0; i < array.size() && !state->error; ++i) {
    messages.push_back(ReadMessage(array[i], IndexPath("messages", i), context));
  }
  return messages;
}

std::vector<MessagesBlock> ReadMessagesSystem(ObjectReader* body, ReadState* state,
                                              CacheMarks* marks) {
  static const std::vector<std::string_view> kTypes = {"text"};
  std::vector<MessagesBlock> texts;
  const json::value* value = body->Find("system");
  if (value == nullptr) return texts;
  if (value->is_string()) {
    texts.emplace_back().text = value->get_string();
    return texts;
  }
  if (!value->is_array()) {
    body->WrongType("system", "a string or an array");
    return texts;
  }
  for (size_t i = 0; i < value->get_array().size() && !state->error; ++i) {
    ObjectReader block(state, value->get_array()[i], IndexPath("system", i));
    block.RequiredOneOf("type", kTypes);
    MessagesBlock& text = texts.emplace_back();
    text.text = block.RequiredString("text");
    text.marked = ReadCacheControl(&block, marks);
  }
  return texts;
}

}  // namespace deepinfer
