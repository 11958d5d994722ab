#include "server/openapi.h"

#include <algorithm>
#include <string_view>

#include "base/json_writer.h"
#include "base/version.h"
#include "server/routes.h"

namespace deepinfer {
namespace {

struct RequestSchema {
  std::string_view route;
  std::string_view schema;
};

// The fields a client must know; everything else is in docs/api.md.
constexpr RequestSchema kRequestSchemas[] = {
    {"/v1/chat/completions",
     R"({"type":"object","required":["model","messages"],"properties":{)"
     R"("model":{"type":"string"},)"
     R"("messages":{"type":"array","minItems":1,"items":{"type":"object","required":["role"],)"
     R"("properties":{"role":{"type":"string","enum":["system","developer","user","assistant",)"
     R"("tool","latest_reminder"]}}}},)"
     R"("max_completion_tokens":{"type":["integer","null"],"minimum":1},)"
     R"("temperature":{"type":["number","null"],"minimum":0,"maximum":2},)"
     R"("top_p":{"type":["number","null"],"exclusiveMinimum":0,"maximum":1},)"
     R"("n":{"type":["integer","null"],"minimum":1,"maximum":128},)"
     R"("stream":{"type":["boolean","null"]}}})"},
    {"/v1/completions",
     R"({"type":"object","required":["model"],"properties":{"model":{"type":"string"},)"
     R"("prompt":{"anyOf":[{"type":"string"},{"type":"array","minItems":1},{"type":"null"}]},)"
     R"("max_tokens":{"type":["integer","null"],"minimum":1},)"
     R"("stream":{"type":["boolean","null"]}}})"},
    {"/tokenize",
     R"({"type":"object","properties":{"prompt":{"type":"string"},"messages":{"type":"array"},)"
     R"("add_special_tokens":{"type":["boolean","null"]},"model":{"type":["string","null"]}}})"},
    {"/detokenize",
     R"({"type":"object","required":["tokens"],"properties":{"tokens":{"type":"array",)"
     R"("items":{"type":"integer","minimum":0}},"model":{"type":["string","null"]}}})"},
};

constexpr std::string_view kErrorSchema =
    R"({"type":"object","required":["error"],"properties":{"error":{"type":"object",)"
    R"("required":["message","type"],"properties":{"message":{"type":"string"},)"
    R"("type":{"type":"string"},"param":{"type":["string","null"]},)"
    R"("code":{"type":["string","integer","null"]}}}}})";

// The render routes take what their generating route takes.
std::string_view SchemaOf(std::string_view route) {
  constexpr std::string_view kRender = "/render";
  if (route.ends_with(kRender)) route.remove_suffix(kRender.size());
  for (const RequestSchema& entry : kRequestSchemas) {
    if (entry.route == route) return entry.schema;
  }
  return R"({"type":"object"})";
}

void WriteOperation(const Route& route, JsonWriter& json) {
  json.Key(route.method == "GET" ? "get" : "post").BeginObject();
  std::string id(route.name.substr(1));
  std::replace_if(
      id.begin(), id.end(), [](char c) { return c == '/' || c == '{' || c == '}' || c == '.'; },
      '_');
  json.Field("operationId", id);
  if (route.takes_suffix) {
    json.Key("parameters")
        .Raw(R"([{"name":"id","in":"path","required":true,"schema":{"type":"string"}}])");
  }
  if (!route.needs_key) json.Key("security").BeginArray().EndArray();
  if (route.method == "POST") {
    json.Key("requestBody").BeginObject().Key("required").Bool(true).Key("content").BeginObject();
    json.Key("application/json").BeginObject().Key("schema").Raw(SchemaOf(route.name));
    json.EndObject().EndObject().EndObject();
  }
  const bool is_text = route.name == "/metrics";
  json.Key("responses").BeginObject().Key("200").BeginObject().Field("description", "Success");
  json.Key("content").BeginObject();
  json.Key(is_text ? "text/plain" : "application/json").BeginObject().Key("schema");
  json.Raw(is_text ? R"({"type":"string"})" : R"({"type":"object"})").EndObject();
  if (route.generates) {
    json.Key("text/event-stream").BeginObject().Key("schema").Raw(R"({"type":"string"})");
    json.EndObject();
  }
  json.EndObject().EndObject();
  json.Key("default").BeginObject().Field("description", "Error");
  json.Key("content").BeginObject().Key("application/json").BeginObject().Key("schema");
  json.Raw(R"({"$ref":"#/components/schemas/Error"})");
  json.EndObject().EndObject().EndObject().EndObject().EndObject();
}

}  // namespace

std::string OpenApiDocument() {
  std::string text;
  JsonWriter json(&text);
  json.BeginObject().Field("openapi", "3.1.0").Key("info").BeginObject();
  json.Field("title", "DeepInfer").Field("version", kVersion).EndObject();
  json.Key("paths").BeginObject();
  for (const Route& route : AllRoutes()) {
    if (route.is_page) continue;
    json.Key(route.name).BeginObject();
    WriteOperation(route, json);
    json.EndObject();
  }
  json.EndObject().Key("components").BeginObject();
  json.Key("schemas").BeginObject().Key("Error").Raw(kErrorSchema).EndObject();
  json.Key("securitySchemes").Raw(R"({"key":{"type":"http","scheme":"bearer"}})").EndObject();
  json.Key("security").Raw(R"([{"key":[]},{}])").EndObject();
  return text;
}

}  // namespace deepinfer
