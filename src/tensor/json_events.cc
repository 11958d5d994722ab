#include "tensor/json_events.h"

#include <fmt/format.h>

#include <boost/json/basic_parser_impl.hpp>
#include <exception>
#include <string>

namespace deepinfer {
namespace {

namespace json = boost::json;

// Adapts Boost.JSON's parser callbacks: joins partial strings and carries the sink's status out.
class SinkHandler {
 public:
  static constexpr size_t max_object_size = static_cast<size_t>(-1);
  static constexpr size_t max_array_size = static_cast<size_t>(-1);
  static constexpr size_t max_key_size = kMaxJsonKeyBytes;
  static constexpr size_t max_string_size = static_cast<size_t>(-1);

  explicit SinkHandler(JsonEventSink& sink) : sink_(sink) {}

  const Status& sink_status() const { return status_; }

  bool on_document_begin(json::error_code&) { return true; }
  bool on_document_end(json::error_code&) { return true; }
  bool on_object_begin(json::error_code& ec) { return Forward(sink_.OnObjectBegin(), ec); }
  bool on_object_end(size_t, json::error_code& ec) { return Forward(sink_.OnObjectEnd(), ec); }
  bool on_array_begin(json::error_code& ec) { return Forward(sink_.OnArrayBegin(), ec); }
  bool on_array_end(size_t, json::error_code& ec) { return Forward(sink_.OnArrayEnd(), ec); }
  bool on_key_part(json::string_view part, size_t, json::error_code&) { return Append(part); }
  bool on_key(json::string_view rest, size_t, json::error_code& ec) {
    Append(rest);
    return Forward(sink_.OnKey(TakeText()), ec);
  }
  bool on_string_part(json::string_view part, size_t, json::error_code&) { return Append(part); }
  bool on_string(json::string_view rest, size_t, json::error_code& ec) {
    Append(rest);
    return Forward(sink_.OnString(TakeText()), ec);
  }
  bool on_number_part(json::string_view, json::error_code&) { return true; }
  bool on_int64(int64_t value, json::string_view, json::error_code& ec) {
    if (value < 0) return Forward(sink_.OnOtherScalar("a negative number"), ec);
    return Forward(sink_.OnUnsigned(static_cast<uint64_t>(value)), ec);
  }
  bool on_uint64(uint64_t value, json::string_view, json::error_code& ec) {
    return Forward(sink_.OnUnsigned(value), ec);
  }
  bool on_double(double, json::string_view, json::error_code& ec) {
    return Forward(sink_.OnOtherScalar("a number that is no 64-bit integer"), ec);
  }
  bool on_bool(bool, json::error_code& ec) { return Forward(sink_.OnOtherScalar("a boolean"), ec); }
  bool on_null(json::error_code& ec) { return Forward(sink_.OnOtherScalar("null"), ec); }
  bool on_comment_part(json::string_view, json::error_code&) { return true; }
  bool on_comment(json::string_view, json::error_code&) { return true; }

 private:
  bool Append(json::string_view part) {
    if (text_taken_) {
      text_.clear();
      text_taken_ = false;
    }
    text_.append(part.data(), part.size());
    return true;
  }

  // The view stays valid until the next Append.
  std::string_view TakeText() {
    text_taken_ = true;
    return text_;
  }

  bool Forward(Status status, json::error_code& ec) {
    if (status.ok()) return true;
    status_ = std::move(status);
    ec = json::error::exception;  // any error stops the parser; status_ holds the real one
    return false;
  }

  JsonEventSink& sink_;
  Status status_;
  std::string text_;
  bool text_taken_ = true;
};

}  // namespace

Status ReadJsonEvents(std::string_view text, size_t max_depth, JsonEventSink& sink) {
  json::parse_options options;
  options.max_depth = max_depth;
  try {
    json::basic_parser<SinkHandler> parser(options, sink);
    json::error_code ec;
    const size_t consumed = parser.write_some(false, text.data(), text.size(), ec);
    if (!parser.handler().sink_status().ok()) return parser.handler().sink_status();
    if (ec) {
      return DataCorruption(fmt::format("bad JSON near byte {}: {}", consumed, ec.message()));
    }
    if (consumed != text.size()) {
      return DataCorruption(
          fmt::format("bad JSON: byte {} follows the end of the document", consumed));
    }
  } catch (const std::exception& e) {
    return ResourceExhausted(
        fmt::format("cannot read JSON of {} bytes: {}", text.size(), e.what()));
  }
  return OkStatus();
}

std::string QuoteForMessage(std::string_view name) {
  constexpr size_t kMaxShownBytes = 200;
  std::string text = "\"";
  for (const char c : name.substr(0, kMaxShownBytes)) {
    const bool plain = static_cast<unsigned char>(c) >= 0x20 && c != 0x7F && c != '"';
    text += plain ? c : '?';
  }
  if (name.size() > kMaxShownBytes) {
    // Do not leave half of a multi-byte character behind.
    while ((static_cast<unsigned char>(text.back()) & 0xC0) == 0x80) text.pop_back();
    if ((static_cast<unsigned char>(text.back()) & 0x80) != 0) text.pop_back();
    text += "...";
  }
  return text + "\"";
}

}  // namespace deepinfer
