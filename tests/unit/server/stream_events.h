// Brings the chunks of a chat stream into a form that does not depend on how the text was cut:
// neighbouring deltas of one kind are joined, empty ones vanish.
// Thread rule: pure functions.
#pragma once

#include <boost/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace deepinfer::testing {

struct JoinedEvent {
  std::string kind;  // "role", "content", "reasoning", "call", "arguments", "finish", "usage"
  int64_t choice = 0;
  int64_t call_index = -1;
  std::string text;     // joined text; for "call" the name; for "finish" the reason
  std::string details;  // JSON of what must be equal besides: role delta, call, usage
  boost::json::array logprobs;

  bool operator==(const JoinedEvent&) const = default;
};

inline std::ostream& operator<<(std::ostream& out, const JoinedEvent& event) {
  return out << event.kind << '[' << event.choice << ',' << event.call_index << "] "
             << boost::json::serialize(boost::json::string(event.text)) << ' ' << event.details
             << ' ' << boost::json::serialize(event.logprobs);
}

inline void AddLogprobs(const boost::json::object& choice, std::string_view key,
                        JoinedEvent* event) {
  const boost::json::value* logprobs = choice.if_contains("logprobs");
  if (logprobs == nullptr || !logprobs->is_object()) return;
  const boost::json::value* list = logprobs->as_object().if_contains(key);
  if (list == nullptr) return;
  for (const boost::json::value& entry : list->as_array()) event->logprobs.push_back(entry);
}

// Adds one chunk's event to `events`.
inline void AddChunk(const boost::json::value& chunk, std::vector<JoinedEvent>* events) {
  const boost::json::object& body = chunk.as_object();
  const boost::json::value* usage = body.if_contains("usage");
  const std::string usage_text = usage == nullptr ? "no usage" : boost::json::serialize(*usage);
  if (body.at("choices").as_array().empty()) {
    events->push_back({"usage", 0, -1, {}, usage_text, {}});
    return;
  }
  const boost::json::object& choice = body.at("choices").at(0).as_object();
  const boost::json::object& delta = choice.at("delta").as_object();
  JoinedEvent event;
  event.choice = choice.at("index").as_int64();
  if (!choice.at("finish_reason").is_null()) {
    event.kind = "finish";
    event.text = choice.at("finish_reason").as_string();
    event.details = usage_text;
  } else if (delta.contains("role")) {
    event.kind = "role";
    event.details = boost::json::serialize(delta);
  } else if (const boost::json::value* calls = delta.if_contains("tool_calls")) {
    const boost::json::object& call = calls->at(0).as_object();
    const boost::json::object& function = call.at("function").as_object();
    event.call_index = call.at("index").as_int64();
    event.kind = call.contains("id") ? "call" : "arguments";
    event.text = function.at(call.contains("id") ? "name" : "arguments").as_string();
    if (call.contains("id")) event.details = boost::json::serialize(call.at("type"));
  } else if (const boost::json::value* reasoning = delta.if_contains("reasoning_content");
             reasoning != nullptr && reasoning->is_string()) {
    event.kind = "reasoning";
    event.text = reasoning->as_string();
    AddLogprobs(choice, "reasoning_content", &event);
  } else {
    event.kind = "content";
    event.text = delta.at("content").as_string();
    AddLogprobs(choice, "content", &event);
  }
  const bool is_text =
      event.kind == "content" || event.kind == "reasoning" || event.kind == "arguments";
  if (is_text && event.text.empty()) return;
  JoinedEvent* last = events->empty() ? nullptr : &events->back();
  if (is_text && last != nullptr && last->kind == event.kind && last->choice == event.choice &&
      last->call_index == event.call_index) {
    last->text += event.text;
    for (boost::json::value& entry : event.logprobs) last->logprobs.push_back(std::move(entry));
    return;
  }
  events->push_back(std::move(event));
}

}  // namespace deepinfer::testing
