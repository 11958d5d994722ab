// What a validator reads of a body, as a JSON Schema: the description of a route comes from the
// code that checks its requests (api.md §2).
// Thread rule: one object, one thread. Owner: server/openapi_fields.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace deepinfer {

class JsonWriter;

class FieldRecorder {
 public:
  FieldRecorder();
  ~FieldRecorder();

  // Paths as in error messages: messages[2].content[0]; "" is the body.
  // An object was read.
  void VisitObject(std::string_view path);
  // One of its fields was looked at.
  void NoteField(std::string_view path, std::string_view key);
  void NoteRequired(std::string_view path, std::string_view key);
  // type: a JSON Schema type.
  void NoteType(std::string_view path, std::string_view key, std::string_view type);
  void NoteRange(std::string_view path, std::string_view key, int64_t min, int64_t max);
  void NoteNames(std::string_view path, std::string_view key,
                 const std::vector<std::string_view>& names);

  // Fields that are optional may be null. A field is required where every object of its place
  // required it.
  void WriteSchema(JsonWriter* json) const;

 private:
  struct Node;
  Node& At(std::string_view path);
  Node& Member(std::string_view path, std::string_view key);
  static void Write(const Node& node, bool is_required, JsonWriter* json);

  std::unique_ptr<Node> root_;
};

}  // namespace deepinfer
