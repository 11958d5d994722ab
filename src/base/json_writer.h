// Appends JSON text without building a document; commas are placed by the writer.
// Thread rule: one writer, one thread. Owner: the function that builds one text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace deepinfer {

class JsonWriter {
 public:
  // Writes to the end of `out`, which is borrowed.
  explicit JsonWriter(std::string* out) : out_(out) {}

  JsonWriter& BeginObject() { return Open('{'); }
  JsonWriter& EndObject() { return Close('}'); }
  JsonWriter& BeginArray() { return Open('['); }
  JsonWriter& EndArray() { return Close(']'); }

  // `key` needs no escaping.
  JsonWriter& Key(std::string_view key);

  // Precondition: valid UTF-8.
  JsonWriter& String(std::string_view text);
  JsonWriter& Int(int64_t number);
  // Shortest decimal that reads back as `number`. Precondition: finite.
  JsonWriter& Float(float number);
  JsonWriter& Bool(bool value) { return Raw(value ? "true" : "false"); }
  JsonWriter& Null() { return Raw("null"); }
  // One complete value as JSON text.
  JsonWriter& Raw(std::string_view json);

  JsonWriter& Field(std::string_view key, std::string_view text) { return Key(key).String(text); }
  JsonWriter& Field(std::string_view key, int64_t number) { return Key(key).Int(number); }

 private:
  JsonWriter& Open(char bracket);
  JsonWriter& Close(char bracket);
  void Separate();

  std::string* out_;
  bool need_comma_ = false;
};

}  // namespace deepinfer
