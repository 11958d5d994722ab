#include "server/openapi.h"

#include <algorithm>
#include <string_view>

#include "base/json_writer.h"
#include "base/version.h"
#include "server/openapi_fields.h"
#include "server/routes.h"

namespace deepinfer {
namespace {

constexpr std::string_view kErrorSchema =
    R"({"type":"object","required":["error"],"properties":{"error":{"type":"object",)"
    R"("required":["message","type"],"properties":{"message":{"type":"string"},)"
    R"("type":{"type":"string"},"param":{"type":["string","null"]},)"
    R"("code":{"type":["string","integer","null"]}}}}})";

void WriteOperation(const Route& route, JsonWriter& json) {
  json.Key(route.method == "GET" ? "get" : "post").BeginObject();
  std::string id(route.name.substr(1));
  std::replace_if(
      id.begin(), id.end(), [](char c) { return c == '/' || c == '{' || c == '}' || c == '.'; },
      '_');
  json.Field("operationId", id);
  if (route.takes_suffix) {
    // What the path has in braces.
    const size_t open = route.name.find('{');
    const std::string_view name = route.name.substr(open + 1, route.name.find('}') - open - 1);
    json.Key("parameters").BeginArray().BeginObject().Field("name", name).Field("in", "path");
    json.Key("required").Bool(true).Key("schema").Raw(R"({"type":"string"})");
    json.EndObject().EndArray();
  }
  if (!route.needs_key) json.Key("security").BeginArray().EndArray();
  if (route.method == "POST") {
    json.Key("requestBody").BeginObject().Key("required").Bool(true).Key("content").BeginObject();
    json.Key("application/json").BeginObject().Key("schema").Raw(RequestSchemaOf(route.name));
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
