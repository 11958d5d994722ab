// Event reader for the JSON inside model files: no tree is built, so memory follows the content
// kept by the sink, duplicate keys stay visible, and nesting is refused before it costs anything.
// Thread rule: the sink is called on the caller's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace deepinfer {

inline constexpr size_t kMaxJsonKeyBytes = 4096;

// Receives the document in order. A non-ok status stops the reader, which returns it unchanged.
class JsonEventSink {
 public:
  virtual ~JsonEventSink() = default;
  virtual Status OnObjectBegin() = 0;
  virtual Status OnObjectEnd() = 0;
  virtual Status OnArrayBegin() = 0;
  virtual Status OnArrayEnd() = 0;
  virtual Status OnKey(std::string_view key) = 0;
  virtual Status OnString(std::string_view value) = 0;
  virtual Status OnUnsigned(uint64_t value) = 0;
  // Any other scalar; kind is for messages: "a negative number", "a boolean", ...
  virtual Status OnOtherScalar(std::string_view kind) = 0;
};

// Reads one complete document; only white space may follow it. data_corruption with the byte
// position for bad JSON, bad UTF-8, nesting beyond max_depth or a key beyond kMaxJsonKeyBytes.
Status ReadJsonEvents(std::string_view text, size_t max_depth, JsonEventSink& sink);

// A name from a file for messages: quoted, control characters and quotes replaced, cut when long.
std::string QuoteForMessage(std::string_view name);

}  // namespace deepinfer
