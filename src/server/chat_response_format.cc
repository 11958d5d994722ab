#include <fmt/format.h>

#include <boost/json.hpp>

#include "server/chat_convert.h"
#include "server/json_schema_check.h"
#include "server/regex_syntax.h"
#include "server/strict_schema.h"
#include "text/json_text.h"
#include "text/python_json.h"

namespace deepinfer {
namespace {

namespace json = boost::json;

constexpr std::string_view kSchemaPath = "response_format.json_schema.schema";

Refusal ConvertSchemaFormat(const BodyResponseFormat& format, Conversation* conversation,
                            OutputConstraint* constraint) {
  if (auto too_large = CheckSchemaSize(*format.schema)) {
    return Refuse(std::string(kSchemaPath), "Invalid json schema: " + *too_large, "invalid_schema");
  }
  json::value enforced = *format.schema;
  if (format.strict) {
    auto strict = TransformStrictSchema(*format.schema, StrictUse::kResponse);
    if (!strict) return Refuse(std::string(kSchemaPath), strict.error(), "invalid_schema");
    enforced = std::move(*strict);
  } else if (auto invalid = CheckJsonSchema(*format.schema)) {
    return Refuse(std::string(kSchemaPath), "Invalid json schema: " + *invalid, "invalid_schema");
  }
  // The prompt shows what the client sent; the grammar enforces the closed form.
  if (format.shown) {
    conversation->response_schema_json = JsonForPrompt(conversation->form, *format.schema);
  }
  *constraint = {ConstraintKind::kJson, CompactJson(enforced), std::string(kSchemaPath),
                 format.strict};
  return std::nullopt;
}

// `json` of structured_outputs: a schema, or a string that holds one.
Refusal ConvertJsonOutput(const BodyStructuredOutput& output, OutputConstraint* constraint) {
  JsonDocument document;
  const json::value* schema = output.schema;
  if (schema == nullptr) {
    *constraint = {ConstraintKind::kJson, {}, output.path};
    return std::nullopt;
  }
  if (auto too_large = CheckSchemaSize(*schema)) {
    return Refuse(output.path, "Invalid json schema: " + *too_large, "invalid_schema");
  }
  if (schema->is_string()) {
    JsonFailure failure;
    const json::string& text = schema->get_string();
    if (!ParseJson({text.data(), text.size()}, &document, &failure)) {
      return Refuse(output.path, "Invalid json schema: " + failure.ToString(), "invalid_schema");
    }
    schema = &document.root();
  }
  if (auto invalid = CheckJsonSchema(*schema)) {
    return Refuse(output.path, "Invalid json schema: " + *invalid, "invalid_schema");
  }
  *constraint = {ConstraintKind::kJson, CompactJson(*schema), output.path};
  return std::nullopt;
}

Refusal ConvertChoice(const BodyStructuredOutput& output, OutputConstraint* constraint) {
  if (output.choices.empty()) {
    return Refuse(output.path,
                  fmt::format("Invalid '{}': expected at least one choice.", output.path));
  }
  json::array choices;
  for (const std::string& choice : output.choices) choices.emplace_back(choice);
  *constraint = {ConstraintKind::kChoice, CompactJson(choices), output.path};
  return std::nullopt;
}

Refusal ConvertStructuredOutput(const BodyStructuredOutput& output, OutputConstraint* constraint) {
  switch (output.kind) {
    case ConstraintKind::kJson:
      return ConvertJsonOutput(output, constraint);
    case ConstraintKind::kChoice:
      return ConvertChoice(output, constraint);
    default:
      if (output.text.empty()) {
        return Refuse(output.path, fmt::format("Invalid '{}': empty string.", output.path));
      }
      *constraint = {output.kind, output.text, output.path};
      return std::nullopt;
  }
}

Refusal CheckRegex(const OutputConstraint& constraint) {
  if (constraint.kind != ConstraintKind::kRegex || IsRegexSyntax(constraint.schema)) {
    return std::nullopt;
  }
  return Refuse(constraint.path,
                fmt::format("Invalid '{}': not a regular expression.", constraint.path),
                "invalid_schema");
}

}  // namespace

Refusal ConvertResponseFormat(const ChatBody& body, const ChatRequestOptions& options,
                              ChatRequest* request) {
  const BodyResponseFormat format = body.response_format.value_or(BodyResponseFormat{});
  request->response_format = format.kind;
  const size_t num_formats = format.kind == ResponseFormat::kText ? 0 : 1;
  if (num_formats + body.structured_outputs.size() > 1) {
    return Refuse(body.structured_outputs.front().path,
                  "Only one constraint may be given: response_format, structured_outputs or one "
                  "of its aliases.");
  }
  std::optional<OutputConstraint> constraint;
  switch (format.kind) {
    case ResponseFormat::kText:
      break;
    case ResponseFormat::kJsonObject:
      request->conversation.response_schema_json = std::string(kJsonObjectSchema);
      request->parsing.parse_json_output = true;
      constraint = {ConstraintKind::kJson, {}, "response_format"};
      break;
    case ResponseFormat::kJsonSchema:
      if (Refusal refusal =
              ConvertSchemaFormat(format, &request->conversation, &constraint.emplace())) {
        return refusal;
      }
      break;
    case ResponseFormat::kRegex:
      constraint = {ConstraintKind::kRegex, format.regex, "response_format.regex"};
      break;
    case ResponseFormat::kStructuralTag:
      constraint = {ConstraintKind::kStructuralTag, format.structural_tag, "response_format"};
      break;
  }
  if (!body.structured_outputs.empty()) {
    if (Refusal refusal =
            ConvertStructuredOutput(body.structured_outputs.front(), &constraint.emplace())) {
      return refusal;
    }
  }
  if (options.check_regex && constraint) {
    if (Refusal refusal = CheckRegex(*constraint)) return refusal;
  }
  request->answer_constraint = constraint;
  if (!request->constraint) request->constraint = std::move(constraint);
  return std::nullopt;
}

}  // namespace deepinfer
