// What writes the answers of one dialect: parser events in, stream events and the body out. The
// server and the replay of recorded output share the writers, so both show the same bytes.
// Thread rule: one object, one thread. Owner: the answer it writes.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"
#include "server/usage.h"
#include "text/output_event.h"

namespace deepinfer {

// One server-sent event; `name` is "" where the dialect has no event lines.
struct NamedEvent {
  std::string_view name;
  std::string json;
};
using NamedEvents = std::vector<NamedEvent>;

struct AnswerEnd {
  std::string_view reason;                 // "stop", "tool_calls", "length", "content_filter"
  std::optional<std::string> stop_string;  // the one that matched
  bool context_full = false;               // "length" because the context ended, not the limit
};

class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;

  // The request waits for its turn, and for longer than it should. At most once, before Start.
  virtual void Queue(NamedEvents* /*events*/) {}
  // Its first token is ready. Once, before all that follow.
  virtual void Start(const UsageCounts& usage, NamedEvents* events) = 0;
  // `logprobs`: JSON objects joined by commas, "" without.
  virtual void Take(const OutputEvent& event, std::string_view logprobs, NamedEvents* events) = 0;
  // Once, as the last.
  virtual void End(const AnswerEnd& end, const UsageCounts& usage, NamedEvents* events) = 0;
  // A stream that cannot go on; instead of End.
  virtual void Abort(const ApiError& error, std::string_view request_id, NamedEvents* events) = 0;
  // The answer in one object. Precondition: behind End.
  virtual std::string Body() const = 0;
  // Of the calls so far, in their order.
  virtual std::vector<std::string> CallIds() const = 0;
};

}  // namespace deepinfer
