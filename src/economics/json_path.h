// Values inside parsed JSON by their path.
// Thread rule: pure functions.
#pragma once

#include <algorithm>
#include <boost/json.hpp>
#include <string_view>

namespace deepinfer {

// The value at a dotted path; null pointer when a part is missing.
inline const boost::json::value* FindAtPath(const boost::json::value& root, std::string_view path) {
  const boost::json::value* at = &root;
  while (at != nullptr && !path.empty()) {
    const std::string_view key = path.substr(0, path.find('.'));
    path.remove_prefix(std::min(path.size(), key.size() + 1));
    at = at->is_object() ? at->get_object().if_contains({key.data(), key.size()}) : nullptr;
  }
  return at;
}

}  // namespace deepinfer
