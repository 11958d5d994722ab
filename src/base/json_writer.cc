#include "base/json_writer.h"

#include <charconv>
#include <system_error>

#include "base/check.h"
#include "base/json_escape.h"

namespace deepinfer {

void JsonWriter::Separate() {
  if (need_comma_) *out_ += ',';
}

JsonWriter& JsonWriter::Open(char bracket) {
  Separate();
  *out_ += bracket;
  need_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::Close(char bracket) {
  *out_ += bracket;
  need_comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::Key(std::string_view key) {
  Separate();
  *out_ += '"';
  *out_ += key;
  *out_ += "\":";
  need_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::Raw(std::string_view json) {
  Separate();
  *out_ += json;
  need_comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::String(std::string_view text) {
  Separate();
  *out_ += '"';
  AppendJsonEscaped(text, out_);
  *out_ += '"';
  need_comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::Int(int64_t number) {
  char buffer[24];
  const auto result = std::to_chars(buffer, buffer + sizeof(buffer), number);
  return Raw({buffer, static_cast<size_t>(result.ptr - buffer)});
}

JsonWriter& JsonWriter::Float(float number) {
  char buffer[32];
  const auto result = std::to_chars(buffer, buffer + sizeof(buffer), number);
  DI_CHECK(result.ec == std::errc());
  return Raw({buffer, static_cast<size_t>(result.ptr - buffer)});
}

}  // namespace deepinfer
