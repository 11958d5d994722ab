#include "server/responses_turns.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "server/image_url.h"

namespace deepinfer {
namespace {

using Kind = ResponsesItem::Kind;

constexpr std::string_view kUnsupportedImageText = "[Unsupported Image]";
constexpr std::string_view kUnsupportedFileText = "[Unsupported Document]";

std::string ItemPath(size_t index) { return "input[" + std::to_string(index) + "]"; }

// Reasoning, a message and calls in a row are one assistant turn; the outputs of its calls follow
// as one user turn.
bool IsEmptySystem(const Turn& turn) {
  const auto* system = std::get_if<SystemTurn>(&turn);
  return system != nullptr && system->added_tools.empty() && system->parts.size() == 1 &&
         system->parts[0].text.empty() && !system->parts[0].is_image();
}

class TurnBuilder {
 public:
  TurnBuilder(const ResponsesBody& body, const ChatRequestOptions& options, ChatRequest* request)
      : body_(body),
        options_(options),
        request_(request),
        is_v4_(request->conversation.form == PromptForm::kV4) {}

  Refusal Build();

 private:
  std::vector<Turn>& Turns() { return request_->conversation.turns; }

  Refusal Add(const ResponsesItem& item);
  Refusal AddAssistant(const ResponsesItem& item);
  Refusal AddCall(const ResponsesItem& item);
  Refusal AddOutput(const ResponsesItem& item);
  // Every call id names one call of the whole input.
  Refusal CheckCallId(const ResponsesItem& item) const;
  // What stands between a call and its output may be nothing but other calls and outputs.
  Refusal CheckNothingWaits() const;
  // The assistant turn being built, a new one where none is or `starts` says that it is complete.
  AssistantTurn& Assistant(bool starts);
  void CloseAssistant();
  void CloseOutputs();

  Refusal AddParts(const ResponsesItem& item, std::vector<ContentPart>* parts);
  Refusal AddImage(const ResponsesPart& part, size_t part_index, std::vector<ContentPart>* parts);
  Refusal CheckPassback() const;

  const ResponsesBody& body_;
  const ChatRequestOptions& options_;
  ChatRequest* request_;
  const bool is_v4_;
  size_t item_ = 0;  // the one being converted

  std::optional<AssistantTurn> assistant_;
  bool has_text_ = false;
  UserTurn outputs_;
  std::vector<Tool> added_;
  std::vector<std::string> open_;             // call ids without output
  std::unordered_set<std::string> calls_;     // ids of all so far
  std::unordered_set<std::string> answered_;  // those with an output
};

Refusal TurnBuilder::Build() {
  if (body_.input_is_list && body_.items.empty()) {
    return Refuse("input", "Input items array must not be empty", "missing_required_parameter");
  }
  const bool has_instructions = body_.instructions && !body_.instructions->empty();
  if (!body_.has_input && !has_instructions) {
    return Refuse("input", "Either input or instructions must be provided",
                  "missing_required_parameter");
  }
  if (body_.items.size() > options_.max_messages) {
    return Refuse("input", fmt::format("Too many items: at most {}.", options_.max_messages));
  }
  if (has_instructions) {
    Turns().push_back(SystemTurn{{ContentPart::Text(*body_.instructions)}});
  }
  for (item_ = 0; item_ < body_.items.size(); ++item_) {
    if (Refusal refusal = Add(body_.items[item_])) return refusal;
  }
  if (Refusal refusal = CheckNothingWaits()) return refusal;
  CloseAssistant();
  CloseOutputs();
  // The older form joins system texts in front: empty ones leave nothing there.
  if (is_v4_ && !std::all_of(Turns().begin(), Turns().end(), IsEmptySystem)) {
    std::erase_if(Turns(), IsEmptySystem);
  }
  if (!options_.responses_extensions && Turns().empty()) return std::nullopt;
  if (Turns().empty()) {
    return Refuse("input", "The input has no item that this server can read");
  }
  if (options_.reasoning_passback == ReasoningPassback::kReject &&
      request_->conversation.thinking) {
    return CheckPassback();
  }
  return std::nullopt;
}

Refusal TurnBuilder::Add(const ResponsesItem& item) {
  switch (item.kind) {
    case Kind::kIgnored:
      return std::nullopt;
    case Kind::kCall:
      return AddCall(item);
    case Kind::kOutput:
      return AddOutput(item);
    default:
      break;
  }
  if (Refusal refusal = CheckNothingWaits()) return refusal;
  if (item.kind == Kind::kInterruption) return std::nullopt;
  // Encrypted or summarised reasoning has no text here.
  if (item.kind == Kind::kReasoning && item.text.empty()) return std::nullopt;
  if (!outputs_.parts.empty()) {
    CloseAssistant();
    CloseOutputs();
  }
  if (item.kind == Kind::kReasoning) {
    AssistantTurn& turn = Assistant(/*starts=*/has_text_);
    if (!turn.reasoning.empty()) turn.reasoning += '\n';
    turn.reasoning += item.text;
    return std::nullopt;
  }
  if (item.kind == Kind::kAssistant) return AddAssistant(item);
  CloseAssistant();
  std::vector<ContentPart> parts;
  if (Refusal refusal = AddParts(item, &parts)) return refusal;
  // The older form knows no developer: its text is the user's.
  if (item.kind == Kind::kSystem || (item.kind == Kind::kDeveloper && !is_v4_)) {
    Turns().push_back(SystemTurn{std::move(parts)});
    return std::nullopt;
  }
  UserTurn turn;
  if (parts.empty()) parts.push_back(ContentPart::Text(""));
  for (ContentPart& part : parts) turn.parts.emplace_back(std::move(part));
  Turns().push_back(std::move(turn));
  return std::nullopt;
}

Refusal TurnBuilder::AddAssistant(const ResponsesItem& item) {
  // A part without one source is refused for that, below.
  const bool has_image =
      std::any_of(item.parts.begin(), item.parts.end(), [](const ResponsesPart& part) {
        return part.kind == ResponsesPart::Kind::kImage &&
               part.image_url.has_value() != part.file_id.has_value();
      });
  if (has_image && !is_v4_) {
    return Refuse(ItemPath(item_), ItemPath(item_) + ": Image in assistant message is unsupported",
                  "unsupported_parameter");
  }
  std::vector<ContentPart> parts;
  if (Refusal refusal = AddParts(item, &parts)) return refusal;
  AssistantTurn& turn = Assistant(/*starts=*/false);
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    text += (i > 0 ? "\n\n" : "") + parts[i].text;
    turn.resume_behind |= parts[i].resume_behind;
  }
  // An item without text leaves no trace: reasoning behind it belongs to the same turn.
  if (text.empty()) return std::nullopt;
  if (!turn.text.empty()) turn.text += "\n\n";
  turn.text += text;
  has_text_ = true;
  return std::nullopt;
}

Refusal TurnBuilder::CheckCallId(const ResponsesItem& item) const {
  const std::string path = ItemPath(item_) + ".call_id";
  if (!item.has_call_id) {
    return Refuse(path, fmt::format("Missing required parameter: '{}'.", path),
                  "missing_required_parameter");
  }
  if (!item.call_id.empty()) return std::nullopt;
  return Refuse(path, fmt::format("Invalid '{}': empty string. Expected a string with minimum "
                                  "length 1, but got an empty string instead.",
                                  path));
}

Refusal TurnBuilder::AddCall(const ResponsesItem& item) {
  if (Refusal refusal = CheckCallId(item)) return refusal;
  if (open_.empty() && !outputs_.parts.empty()) {
    CloseAssistant();
    CloseOutputs();
  }
  if (!calls_.insert(item.call_id).second) {
    return Refuse(ItemPath(item_), fmt::format("Duplicate 'call_id': {}.", item.call_id));
  }
  open_.push_back(item.call_id);
  Assistant(/*starts=*/false).calls.push_back({item.call_id, item.name, item.text});
  return std::nullopt;
}

Refusal TurnBuilder::AddOutput(const ResponsesItem& item) {
  // The official rules take an output of no call for text of the user.
  const bool is_loose = !item.has_call_id && !options_.responses_extensions;
  if (Refusal refusal = is_loose ? std::nullopt : CheckCallId(item)) return refusal;
  const auto open = std::find(open_.begin(), open_.end(), item.call_id);
  if (!is_loose && open == open_.end()) {
    const bool is_second = answered_.count(item.call_id) > 0;
    return Refuse(ItemPath(item_),
                  is_second ? fmt::format("Duplicate tool output for call_id: {}.", item.call_id)
                            : fmt::format("No tool call found for tool output with call_id {}.",
                                          item.call_id));
  }
  if (!is_loose) {
    open_.erase(open);
    answered_.insert(item.call_id);
  }
  ToolResult result;
  result.call_id = item.call_id;
  if (Refusal refusal = AddParts(item, &result.parts)) return refusal;
  if (result.parts.empty()) result.parts.push_back(ContentPart::Text(""));
  outputs_.parts.emplace_back(std::move(result));
  for (const std::string& name : item.added_tools) added_.emplace_back().name = name;
  return std::nullopt;
}

Refusal TurnBuilder::CheckNothingWaits() const {
  if (open_.empty()) return std::nullopt;
  return Refuse("input", fmt::format("No tool output found for tool call {}.", open_.front()));
}

AssistantTurn& TurnBuilder::Assistant(bool starts) {
  if (starts) CloseAssistant();
  if (!assistant_) assistant_.emplace();
  return *assistant_;
}

void TurnBuilder::CloseAssistant() {
  has_text_ = false;
  if (!assistant_) return;
  Turns().push_back(std::move(*assistant_));
  assistant_.reset();
}

void TurnBuilder::CloseOutputs() {
  if (outputs_.parts.empty()) return;
  Turns().push_back(std::exchange(outputs_, {}));
  if (!added_.empty()) Turns().push_back(SystemTurn{{}, std::exchange(added_, {})});
}

Refusal TurnBuilder::AddParts(const ResponsesItem& item, std::vector<ContentPart>* parts) {
  for (size_t i = 0; i < item.parts.size(); ++i) {
    const ResponsesPart& part = item.parts[i];
    switch (part.kind) {
      case ResponsesPart::Kind::kText:
        parts->push_back(ContentPart::Text(part.text));
        break;
      case ResponsesPart::Kind::kFile:
        parts->push_back(ContentPart::Text(std::string(kUnsupportedFileText)));
        break;
      case ResponsesPart::Kind::kImage:
        if (Refusal refusal = AddImage(part, i, parts)) return refusal;
        break;
    }
    parts->back().resume_behind = part.cache_breakpoint;
  }
  return std::nullopt;
}

Refusal TurnBuilder::AddImage(const ResponsesPart& part, size_t part_index,
                              std::vector<ContentPart>* parts) {
  if (is_v4_) {
    parts->push_back(ContentPart::Text(std::string(kUnsupportedImageText)));
    return std::nullopt;
  }
  const std::string path = ItemPath(item_);
  const char* list = body_.items[item_].kind == Kind::kOutput ? ".output[" : ".content[";
  const std::string part_path = path + list + std::to_string(part_index) + "]";
  if (part.image_url && part.file_id) {
    return Refuse(part_path, part_path + ": input_image cannot have both image_url and file_id");
  }
  if (part.file_id) {
    return Refuse(part_path, part_path +
                                 ": file_id is not supported. Pass the image as a base64 "
                                 "data url instead.");
  }
  if (!part.image_url) {
    return Refuse(part_path, part_path + ": input_image must have image_url or file_id");
  }
  const CheckedImageUrl checked = CheckImageUrl(*part.image_url, ImageField::kImageUrl);
  if (!checked.fault.empty()) return Refuse(part_path, path + ": " + checked.fault);
  if (request_->images.size() == options_.max_images) {
    return Refuse("input", fmt::format("Too many images: at most {}.", options_.max_images));
  }
  parts->push_back(ContentPart::Image(static_cast<int32_t>(request_->images.size())));
  request_->images.push_back({checked.is_data_url, *part.image_url, part.detail, path});
  return std::nullopt;
}

Refusal TurnBuilder::CheckPassback() const {
  const std::vector<Turn>& turns = request_->conversation.turns;
  for (size_t i = turns.size(); i-- > 0;) {
    if (const auto* user = std::get_if<UserTurn>(&turns[i])) {
      const bool only_results = std::all_of(
          user->parts.begin(), user->parts.end(),
          [](const UserPart& part) { return std::holds_alternative<ToolResult>(part); });
      if (!only_results) break;
    }
    const auto* assistant = std::get_if<AssistantTurn>(&turns[i]);
    if (assistant == nullptr || !assistant->reasoning.empty()) continue;
    if (assistant->calls.empty() && body_.common.tools.empty()) continue;
    return Refuse("input",
                  "The `reasoning_text` in the thinking mode must be passed back to the API.",
                  "missing_required_parameter");
  }
  return std::nullopt;
}

}  // namespace

Refusal ConvertResponsesTurns(const ResponsesBody& body, const ChatRequestOptions& options,
                              ChatRequest* request) {
  return TurnBuilder(body, options, request).Build();
}

}  // namespace deepinfer
