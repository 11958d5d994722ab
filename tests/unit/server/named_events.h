// Brings streams of named events (Messages, Responses) into a form that does not depend on how the
// text was cut: neighbouring deltas of one place are joined, empty ones vanish.
// Thread rule: pure functions.
#pragma once

#include <boost/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace deepinfer::testing {

// The member of an event that holds its piece of text, and where; null for other events.
inline boost::json::string* DeltaText(boost::json::object* event) {
  boost::json::value* delta = event->if_contains("delta");
  if (delta == nullptr) return nullptr;
  if (delta->is_string()) return &delta->get_string();
  for (const char* member : {"text", "thinking", "partial_json"}) {
    if (boost::json::value* text = delta->as_object().if_contains(member)) {
      return &text->get_string();
    }
  }
  return nullptr;
}

using NamedEventList = std::vector<std::pair<std::string, boost::json::object>>;

// `events`: [[i, name, data], ...].
inline NamedEventList JoinNamedEvents(const boost::json::value& events) {
  NamedEventList joined;
  for (const boost::json::value& event : events.as_array()) {
    std::string name(event.at(1).as_string());
    boost::json::object data = event.at(2).as_object();
    data.erase("sequence_number");
    const boost::json::string* text = DeltaText(&data);
    if (text != nullptr && text->empty()) continue;
    if (text != nullptr && !joined.empty() && joined.back().first == name) {
      boost::json::object before = joined.back().second;
      boost::json::string* whole = DeltaText(&before);
      const std::string piece(*text);
      const std::string so_far(*whole);
      *whole = *text;
      if (before == data) {
        *DeltaText(&joined.back().second) = so_far + piece;
        continue;
      }
    }
    joined.emplace_back(std::move(name), std::move(data));
  }
  return joined;
}

}  // namespace deepinfer::testing
