#include "server/field_recorder.h"

#include <algorithm>
#include <limits>

#include "base/json_writer.h"

namespace deepinfer {

struct FieldRecorder::Node {
  int64_t visits = 0;    // as an object
  int64_t required = 0;  // by the object that holds it
  int64_t lookups = 0;
  int64_t typed_lookups = 0;
  std::vector<std::string> types;
  std::vector<std::string> names;
  std::optional<std::pair<int64_t, int64_t>> range;
  std::vector<std::pair<std::string, std::unique_ptr<Node>>> members;  // in the order of reading
  std::unique_ptr<Node> items;

  Node& Of(std::string_view key) {
    const auto found = std::find_if(members.begin(), members.end(),
                                    [&](const auto& member) { return member.first == key; });
    if (found != members.end()) return *found->second;
    return *members.emplace_back(std::string(key), std::make_unique<Node>()).second;
  }
};

FieldRecorder::FieldRecorder() : root_(std::make_unique<Node>()) {}
FieldRecorder::~FieldRecorder() = default;

FieldRecorder::Node& FieldRecorder::At(std::string_view path) {
  Node* at = root_.get();
  while (!path.empty()) {
    if (path.front() == '[') {
      path.remove_prefix(std::min(path.size(), path.find(']') + 1));
      if (!at->items) at->items = std::make_unique<Node>();
      at = at->items.get();
    } else {
      if (path.front() == '.') path.remove_prefix(1);
      const size_t end = std::min(path.size(), path.find_first_of(".["));
      at = &at->Of(path.substr(0, end));
      path.remove_prefix(end);
    }
  }
  return *at;
}

FieldRecorder::Node& FieldRecorder::Member(std::string_view path, std::string_view key) {
  return At(path).Of(key);
}

void FieldRecorder::VisitObject(std::string_view path) { ++At(path).visits; }

void FieldRecorder::NoteField(std::string_view path, std::string_view key) {
  ++Member(path, key).lookups;
}

void FieldRecorder::NoteRequired(std::string_view path, std::string_view key) {
  ++Member(path, key).required;
}

void FieldRecorder::NoteType(std::string_view path, std::string_view key, std::string_view type) {
  Node& member = Member(path, key);
  ++member.typed_lookups;
  std::vector<std::string>& types = member.types;
  if (std::find(types.begin(), types.end(), type) == types.end()) types.emplace_back(type);
}

void FieldRecorder::NoteRange(std::string_view path, std::string_view key, int64_t min,
                              int64_t max) {
  Member(path, key).range = {min, max};
}

void FieldRecorder::NoteNames(std::string_view path, std::string_view key,
                              const std::vector<std::string_view>& names) {
  std::vector<std::string>& known = Member(path, key).names;
  for (const std::string_view name : names) {
    if (std::find(known.begin(), known.end(), name) == known.end()) known.emplace_back(name);
  }
}

void FieldRecorder::Write(const Node& node, bool is_required, JsonWriter* json) {
  json->BeginObject();
  // Where a validator looked at the value itself, any type may be right.
  const bool is_typed = node.typed_lookups >= node.lookups;
  if (!node.types.empty() && is_typed) {
    json->Key("type").BeginArray();
    for (const std::string& type : node.types) json->String(type);
    if (!is_required) json->String("null");
    json->EndArray();
  }
  // A field that may also be a number, as efforts, has names for its text only.
  if (!node.names.empty() && is_typed && node.types == std::vector<std::string>{"string"}) {
    json->Key("enum").BeginArray();
    for (const std::string& name : node.names) json->String(name);
    if (!is_required) json->Null();
    json->EndArray();
  }
  if (node.range) {
    constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
    if (node.range->first != kLeast) json->Field("minimum", node.range->first);
    if (node.range->second != kMost) json->Field("maximum", node.range->second);
  }
  if (node.items) {
    json->Key("items");
    Write(*node.items, true, json);
  }
  if (!node.members.empty()) {
    json->Key("properties").BeginObject();
    const auto required = [&](const Node& member) {
      return member.required > 0 && member.required == node.visits;
    };
    bool any_required = false;
    for (const auto& [key, member] : node.members) {
      json->Key(key);
      Write(*member, required(*member), json);
      any_required = any_required || required(*member);
    }
    json->EndObject();
    if (any_required) {
      json->Key("required").BeginArray();
      for (const auto& [key, member] : node.members) {
        if (required(*member)) json->String(key);
      }
      json->EndArray();
    }
  }
  json->EndObject();
}

void FieldRecorder::WriteSchema(JsonWriter* json) const {
  Node& root = *root_;
  root.types = {"object"};
  Write(root, true, json);
}

}  // namespace deepinfer
