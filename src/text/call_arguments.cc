#include "text/call_arguments.h"

#include <boost/json.hpp>

#include "text/json_text.h"
#include "text/python_json.h"

namespace deepinfer {

std::vector<CallParameter> SplitCallArguments(PromptForm form, std::string_view arguments) {
  JsonDocument document;
  JsonFailure failure;
  if (!ParseJson(arguments, &document, &failure) || !document.root().is_object()) {
    return {{"arguments", std::string(arguments), true}};
  }
  std::vector<CallParameter> parameters;
  for (const auto& member : document.root().get_object()) {
    const boost::json::value& value = member.value();
    const bool is_string = value.is_string();
    parameters.push_back({std::string(member.key()),
                          is_string ? std::string(value.get_string()) : JsonForPrompt(form, value),
                          is_string});
  }
  return parameters;
}

}  // namespace deepinfer
