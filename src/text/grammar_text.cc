#include "text/grammar_text.h"

#include <boost/json.hpp>
#include <cctype>

#include "text/grammar_schema.h"
#include "text/special_tokens.h"

namespace deepinfer {

namespace json = boost::json;

namespace {

// As the library prints them.
constexpr std::string_view kMarkerInText = "\\uff5cDSML\\uff5c";
constexpr std::string_view kMarkerInEbnf = "\\U00140000";
// Stands for the text ｜DSML｜ of a client's schema, which is no marker: a noncharacter.
constexpr std::string_view kLiteralMarker = "\xF4\x8F\xBF\xBE";  // U+10FFFE
constexpr std::string_view kLiteralMarkerInEbnf = "\\U0010fffe";

// Characters of a JSON string as the library has them, with and without a limit of the length, and
// as they should be: no control characters, and no surrogates, which are no text in UTF-8.
constexpr std::string_view kLimitedStringClass = R"([^\"\\\r\n])";
constexpr std::string_view kStringClass = R"([^\0-\u001f\"\\\r\n])";
constexpr std::string_view kJsonStringClass = R"([^\0-\u001f\"\\\ud800-\udfff])";

size_t ReplaceAll(std::string_view from, std::string_view to, std::string* text) {
  size_t count = 0;
  size_t offset = 0;
  while ((offset = text->find(from, offset)) != std::string::npos) {
    text->replace(offset, from.size(), to);
    offset += to.size();
    ++count;
  }
  return count;
}

std::string EbnfString(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7F) {
      constexpr char kHex[] = "0123456789abcdef";
      out += "\\u00";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      out += c;
    }
  }
  return out + '"';
}

struct CallTags {
  std::string open_calls, close_calls, open_invoke, close_invoke;
  std::string calls_behind_marker;
  std::string_view style;
};

CallTags TagsOf(PromptForm form) {
  const bool v41 = form == PromptForm::kV41;
  const std::string calls = v41 ? " calls" : "tool_calls";
  const std::string invoke = v41 ? " invoke" : "invoke";
  const std::string open = "<" + std::string(kDsmlString);
  const std::string close = "</" + std::string(kDsmlString);
  return {open + calls + ">\n",
          "\n" + close + calls + ">",
          open + invoke + " name=\"",
          "\n" + close + invoke + ">",
          calls + ">\n",
          v41 ? "deepseek_v4_1_xml" : "deepseek_xml"};
}

json::object ConstString(std::string text) {
  return {{"type", "const_string"}, {"value", std::move(text)}};
}

// Masks of raw strings with a length limit take a second to compute. Those behind a reference keep
// it: the same definition may be that of a JSON string.
bool DropStringLengths(json::value* schema) {
  if (!schema->is_object()) return false;
  json::object& object = schema->get_object();
  bool dropped = false;
  const json::value* type = object.if_contains("type");
  if (type != nullptr && !object.contains("pattern") && (*type == "string" || type->is_array())) {
    dropped = object.erase("minLength") + object.erase("maxLength") > 0;
  }
  for (const std::string_view key : {"anyOf", "oneOf", "allOf"}) {
    json::value* options = object.if_contains(key);
    if (options == nullptr || !options->is_array()) continue;
    for (json::value& option : options->get_array()) dropped |= DropStringLengths(&option);
  }
  return dropped;
}

// The format for one call of a tool.
Result<json::object> InvokeTag(const json::value& tool, size_t index, const CallTags& tags,
                               std::vector<std::string>* unenforced) {
  const std::string where = "tools[" + std::to_string(index) + "].function";
  const json::value* function =
      tool.is_object() ? tool.get_object().if_contains("function") : nullptr;
  if (function == nullptr || !function->is_object()) return InvalidRequest(where + " is missing");
  const json::value* name = function->get_object().if_contains("name");
  if (name == nullptr || !name->is_string()) return InvalidRequest(where + ".name is missing");
  const json::value* parameters = function->get_object().if_contains("parameters");
  json::value schema = {{"type", "object"}};
  if (parameters != nullptr && !parameters->is_null()) schema = *parameters;
  if (!schema.is_object() || schema.get_object().empty()) schema = {{"type", "object"}};
  for (const std::string& part : PrepareForCompiler(&schema, StringForm::kRawProperties)) {
    unenforced->push_back(where + ".parameters: " + part);
  }
  json::value* properties = schema.get_object().if_contains("properties");
  if (properties != nullptr && properties->is_object()) {
    for (auto& property : properties->get_object()) {
      if (!DropStringLengths(&property.value())) continue;
      unenforced->push_back("the length of " + where + ".parameters." +
                            std::string(property.key()));
    }
  }
  std::string begin = tags.open_invoke;
  begin.append(name->get_string().data(), name->get_string().size());
  begin += "\">\n";
  return json::object{{"type", "tag"},
                      {"begin", std::move(begin)},
                      {"content", json::object{{"type", "json_schema"},
                                               {"style", tags.style},
                                               {"json_schema", std::move(schema)},
                                               {"max_whitespace_cnt", kMaxGrammarWhitespace}}},
                      {"end", tags.close_invoke}};
}

// White space is at most kMaxGrammarWhitespace, so an answer follows its schema as kJsonSchema
// does.
Result<json::object> AnswerFormat(std::string_view schema_text,
                                  std::vector<std::string>* unenforced) {
  DI_ASSIGN_OR_RETURN(json::value schema, ParseGrammarJson(schema_text, "the response schema"));
  for (std::string& part : PrepareForCompiler(&schema)) unenforced->push_back(std::move(part));
  return json::object{{"type", "json_schema"},
                      {"json_schema", std::move(schema)},
                      {"max_whitespace_cnt", kMaxGrammarWhitespace}};
}

bool IsRuleNameByte(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.';
}

// Digits are a rule of their own, repeated once or more behind `"."` or behind `[eE]` and a sign.
void BoundNumbers(std::string* ebnf) {
  // The sign and the first digit stand before these.
  ReplaceAll("[1-9] [0-9]*", "[1-9] [0-9]{0, 30}", ebnf);
  constexpr std::string_view kUnbounded = "{1, -1}";
  size_t offset = 0;
  while ((offset = ebnf->find(kUnbounded, offset)) != std::string::npos) {
    size_t name = offset;
    while (name > 0 && IsRuleNameByte((*ebnf)[name - 1])) --name;
    const std::string_view before = std::string_view(*ebnf).substr(0, name);
    const bool digits = ebnf->substr(name, offset - name).find("_digits") != std::string::npos;
    if (digits) {
      ebnf->replace(offset, kUnbounded.size(), before.ends_with("\".\" ") ? "{1, 24}" : "{1, 3}");
    }
    ++offset;
  }
}

}  // namespace

Result<std::string> ChoiceToEbnf(std::string_view choices_json) {
  DI_ASSIGN_OR_RETURN(const json::value choices, ParseGrammarJson(choices_json, "choice"));
  if (!choices.is_array() || choices.get_array().empty()) {
    return InvalidRequest("choice must be a non-empty array of strings");
  }
  std::string ebnf = "root ::= ";
  size_t index = 0;
  for (const json::value& choice : choices.get_array()) {
    if (!choice.is_string() || choice.get_string().empty()) {
      return InvalidRequest("choice[" + std::to_string(index) + "] must be a non-empty string");
    }
    if (index++ > 0) ebnf += " | ";
    ebnf += EbnfString(std::string_view(choice.get_string()));
  }
  return ebnf + "\n";
}

Result<std::string> ToolCallsToStructuralTag(const GrammarSource& source,
                                             std::vector<std::string>* unenforced) {
  std::string tools_json = source.text;
  ReplaceAll(kDsmlString, kLiteralMarker, &tools_json);
  DI_ASSIGN_OR_RETURN(const json::value tools, ParseGrammarJson(tools_json, "tools"));
  if (!tools.is_array() || tools.get_array().empty()) {
    return InvalidRequest("tools must be a non-empty array");
  }
  const CallTags tags = TagsOf(source.prompt_form);
  json::array invokes;
  for (const json::value& tool : tools.get_array()) {
    DI_ASSIGN_OR_RETURN(json::object invoke, InvokeTag(tool, invokes.size(), tags, unenforced));
    invokes.push_back(std::move(invoke));
  }
  json::array elements;
  if (source.calls_start == CallsStart::kBehindMarker) {
    elements.push_back(ConstString(tags.calls_behind_marker));
  } else if (source.calls_start != CallsStart::kInsideBlock) {
    elements.push_back(ConstString("\n\n" + tags.open_calls));
  }
  elements.push_back(json::object{{"type", "tags_with_separator"},
                                  {"tags", std::move(invokes)},
                                  {"separator", "\n"},
                                  {"at_least_one", true},
                                  {"stop_after_first", !source.parallel_calls}});
  elements.push_back(ConstString(tags.close_calls));
  json::object format{{"type", "sequence"}, {"elements", std::move(elements)}};
  if (source.calls_start == CallsStart::kAnswerOrBlock) {
    std::string answer_schema = source.answer_schema;
    ReplaceAll(kDsmlString, kLiteralMarker, &answer_schema);
    DI_ASSIGN_OR_RETURN(json::object answer, AnswerFormat(answer_schema, unenforced));
    format = {{"type", "or"}, {"elements", json::array{std::move(answer), std::move(format)}}};
  }
  return json::serialize(json::object{{"type", "structural_tag"}, {"format", std::move(format)}});
}

std::string MakeEscapesUnambiguous(std::string_view printed) {
  std::string out;
  out.reserve(printed.size());
  for (size_t i = 0; i < printed.size(); ++i) {
    out += printed[i];
    if (printed[i] != '\\' || i + 1 == printed.size()) continue;
    ++i;
    out += printed[i] == 'x' ? std::string_view("u00") : printed.substr(i, 1);
  }
  return out;
}

std::string CorrectEbnf(std::string ebnf) {
  ebnf = MakeEscapesUnambiguous(ebnf);
  BoundNumbers(&ebnf);
  for (const std::string_view characters : {kLimitedStringClass, kStringClass}) {
    ReplaceAll(characters, kJsonStringClass, &ebnf);
  }
  ReplaceAll(kMarkerInText, kMarkerInEbnf, &ebnf);
  ReplaceAll(kLiteralMarkerInEbnf, kMarkerInText, &ebnf);
  for (const std::string_view name : {" parameter", "parameter"}) {
    const std::string closing_tag = "</" + std::string(kMarkerInEbnf) + std::string(name) + ">";
    ReplaceAll("excludes=(\"" + closing_tag + "\")",
               "excludes=(\"" + std::string(kMarkerInEbnf) + "\")", &ebnf);
  }
  return ebnf;
}

}  // namespace deepinfer
