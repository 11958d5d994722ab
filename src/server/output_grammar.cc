#include "server/output_grammar.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <utility>

#include "server/error_response.h"
#include "text/python_json.h"

namespace deepinfer {
namespace {

namespace json = boost::json;

constexpr std::string_view kAnyObject = R"({"type":"object"})";

bool IsOfTools(ConstraintKind kind) {
  return kind == ConstraintKind::kToolCall || kind == ConstraintKind::kToolCallRequired;
}

GrammarSource AnswerSource(const OutputConstraint& constraint) {
  GrammarSource source;
  source.text = constraint.schema;
  switch (constraint.kind) {
    case ConstraintKind::kJson:
      source.kind = constraint.schema.empty() ? GrammarKind::kJsonObject : GrammarKind::kJsonSchema;
      break;
    case ConstraintKind::kRegex:
      source.kind = GrammarKind::kRegex;
      break;
    case ConstraintKind::kChoice:
      source.kind = GrammarKind::kChoice;
      break;
    case ConstraintKind::kGrammar:
      source.kind = GrammarKind::kEbnf;
      break;
    default:
      source.kind = GrammarKind::kStructuralTag;
      break;
  }
  return source;
}

// The tools with free parameters: what remains to be enforced where their schemas are refused.
std::string WithFreeParameters(const std::string& tools_json) {
  json::error_code error;
  json::value tools = json::parse(tools_json, error);
  if (error || !tools.is_array()) return tools_json;
  for (json::value& tool : tools.get_array()) {
    json::value* function = tool.is_object() ? tool.get_object().if_contains("function") : nullptr;
    if (function == nullptr || !function->is_object()) continue;
    function->get_object()["parameters"] = {{"type", "object"}};
  }
  return CompactJson(tools);
}

bool BeginsInReasoning(const ChatRequest& request) {
  return request.parsing.start == OutputStart::kReasoningStart ||
         request.parsing.start == OutputStart::kReasoningContinuation;
}

// The grammar applies behind the reasoning, if there is any.
GrammarTrigger BehindReasoning(const ChatRequest& request, const SpecialTokens& special) {
  GrammarTrigger trigger;
  if (!BeginsInReasoning(request)) return trigger;
  trigger.token_ids = {special.think_end};
  // A call in the reasoning would end it for the parser, not for the grammar.
  if (request.parsing.parse_tool_calls) trigger.banned_ids = {special.dsml};
  return trigger;
}

// Free text until `<[M]` begins a block.
GrammarTrigger AtToolOpener(const SpecialTokens& special) {
  GrammarTrigger trigger;
  trigger.token_ids = {special.dsml};
  trigger.preceding_text = "<";
  trigger.optional = true;
  return trigger;
}

OutputGrammar ToolGrammar(const ChatRequest& request, const SpecialTokens& special) {
  const OutputConstraint& constraint = *request.constraint;
  OutputGrammar grammar;
  GrammarSource& source = grammar.source;
  source.kind = GrammarKind::kToolCalls;
  source.text = constraint.schema;
  source.prompt_form = request.conversation.form;
  source.parallel_calls = request.parallel_tool_calls;
  grammar.strict = constraint.strict;
  if (request.parsing.starts_in_tool_calls) {
    source.calls_start = CallsStart::kInsideBlock;
  } else if (constraint.kind == ConstraintKind::kToolCallRequired) {
    source.calls_start = CallsStart::kWholeBlock;
    grammar.trigger = BehindReasoning(request, special);
  } else if (request.answer_constraint) {
    source.calls_start = CallsStart::kAnswerOrBlock;
    const std::string& schema = request.answer_constraint->schema;
    source.answer_schema = schema.empty() ? std::string(kAnyObject) : schema;
    grammar.trigger = BehindReasoning(request, special);
    grammar.strict = grammar.strict || request.answer_constraint->strict;
  } else {
    source.calls_start = CallsStart::kBehindMarker;
    grammar.trigger = AtToolOpener(special);
  }
  if (!grammar.strict) {
    grammar.fallback = source;
    grammar.fallback->text = WithFreeParameters(source.text);
  }
  return grammar;
}

}  // namespace

ApiResult<RequestGrammar> MakeRequestGrammar(const ChatRequest& request,
                                             const SpecialTokens& special) {
  RequestGrammar result;
  if (!request.constraint) return result;
  const OutputConstraint& constraint = *request.constraint;
  result.path = constraint.path;
  OutputGrammar grammar;
  if (IsOfTools(constraint.kind)) {
    const auto& answer = request.answer_constraint;
    if (constraint.kind == ConstraintKind::kToolCall && answer) {
      if (answer->kind != ConstraintKind::kJson) {
        return tl::unexpected(UnsupportedParameterError(
            answer->path, fmt::format("With tools the answer can follow a JSON Schema only, not a "
                                      "constraint of kind '{}'.",
                                      ConstraintKindName(answer->kind))));
      }
    }
    grammar = ToolGrammar(request, special);
  } else {
    grammar.source = AnswerSource(constraint);
    grammar.trigger = BehindReasoning(request, special);
    grammar.strict = constraint.strict;
  }
  result.grammar = std::make_shared<const OutputGrammar>(std::move(grammar));
  return result;
}

ApiError GrammarError(const Status& status, const std::string& path) {
  const bool transient =
      status.code() == StatusCode::kUnavailable || status.code() == StatusCode::kCancelled;
  if (transient) return OverloadedError(status.message());
  // A compiler that crashed says nothing that a client should read.
  const std::string reason = status.code() == StatusCode::kInternal
                                 ? "it is too complex to be compiled"
                                 : status.message();
  ApiError error = ServeError(400, "invalid_request_error", "invalid_schema",
                              fmt::format("Invalid '{}': {}", path, reason));
  error.param = path;
  return error;
}

}  // namespace deepinfer
