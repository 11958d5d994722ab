// Framing of server-sent events (api.md §5).
// Thread rule: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "server/http.h"

namespace deepinfer {

inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";
inline constexpr std::string_view kSseKeepAlive = ": keep-alive\n\n";

inline constexpr std::string_view kSsePing = "event: ping\ndata: {\"type\":\"ping\"}\n\n";

// json holds no line break.
inline std::string SseData(std::string_view json) {
  std::string event;
  event.reserve(json.size() + 8);
  event.append("data: ").append(json).append("\n\n");
  return event;
}

// With an event line; the dialects that have them dispatch on it.
inline std::string SseEvent(std::string_view name, std::string_view json) {
  std::string event;
  event.reserve(name.size() + json.size() + 16);
  event.append("event: ").append(name).append("\ndata: ").append(json).append("\n\n");
  return event;
}

// Status and headers in front of the events.
inline HttpResponse SseResponseHead() {
  HttpResponse head;
  head.content_type = "text/event-stream";
  head.headers.push_back({"Cache-Control", "no-cache"});
  head.headers.push_back({"X-Accel-Buffering", "no"});
  return head;
}

}  // namespace deepinfer
