// Responses answers: the event sequence of a stream and the response object (api.md §9).
// Thread rule: one object, one thread. Owner: the answer it writes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "server/answer_writer.h"
#include "server/custom_input.h"
#include "server/responses_request.h"

namespace deepinfer {

class JsonWriter;

struct ResponsesFormat {
  std::string id;  // "resp_..."
  std::string model;
  int64_t created_s = 0;
  std::string echo_json;
  std::map<std::string, ResponsesTool, std::less<>> tools;
  bool usage_extension = true;  // usage.deepinfer
  bool reference = false;       // the forms of the official conversion rules
};

class ResponsesWriter final : public AnswerWriter {
 public:
  // `make_call_id(index)` names a call that starts, `now_s` says when the answer is complete.
  ResponsesWriter(ResponsesFormat format, std::function<std::string(int32_t)> make_call_id,
                  std::function<int64_t()> now_s);

  void Queue(NamedEvents* events) override;
  void Start(const UsageCounts& usage, NamedEvents* events) override;
  void Take(const OutputEvent& event, std::string_view logprobs, NamedEvents* events) override;
  void End(const AnswerEnd& end, const UsageCounts& usage, NamedEvents* events) override;
  void Abort(const ApiError& error, std::string_view request_id, NamedEvents* events) override;
  std::string Body() const override { return Response(); }
  std::vector<std::string> CallIds() const override;

 private:
  enum class ItemKind : unsigned char { kReasoning, kMessage, kFunction, kCustom, kSearch };
  struct Item {
    ItemKind kind = ItemKind::kMessage;
    std::string id;
    std::string_view status = "in_progress";
    std::string text;      // reasoning, message, arguments, or the input of a custom call
    std::string logprobs;  // kMessage: JSON objects joined by commas
    std::string call_id;
    std::string name;
    std::string name_space;
    bool precedes_calls = false;  // kMessage
  };

  Item& Open(ItemKind kind, NamedEvents* events);
  void OpenCall(const OutputEvent& event, NamedEvents* events);
  void Announce(NamedEvents* events);
  void Close(std::string_view status, NamedEvents* events);
  void Add(std::string_view text, std::string_view logprobs, NamedEvents* events);
  bool IsOpen(ItemKind kind) const { return open_ && items_.back().kind == kind; }

  // An event about the whole response.
  void WriteResponse(std::string_view type, NamedEvents* events);
  // Writes one event: its type, what `members` writes, and its number.
  void Write(std::string_view type, const std::function<void(JsonWriter*)>& members,
             NamedEvents* events);
  void WriteItem(const Item& item, JsonWriter* json) const;
  void WritePart(const Item& item, JsonWriter* json) const;
  void WriteUsage(JsonWriter* json) const;
  std::string Response() const;

  const ResponsesFormat format_;
  const std::function<std::string(int32_t)> make_call_id_;
  const std::function<int64_t()> now_s_;
  std::vector<Item> items_;
  bool open_ = false;  // the last item
  CustomInput custom_input_;
  std::string_view status_ = "in_progress";
  std::string incomplete_json_ = "null";
  std::string error_json_ = "null";
  std::string completed_at_json_ = "null";
  bool has_usage_ = false;
  UsageCounts usage_;
  int64_t sequence_number_ = 0;
};

}  // namespace deepinfer
