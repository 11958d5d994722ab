// Arguments of a past tool call as parameters of the calls block (encoding.md §7).
// Thread rule: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/conversation.h"

namespace deepinfer {

struct CallParameter {
  std::string name;
  std::string value;  // is_string: the raw string, else JSON text
  bool is_string = false;
};

// One parameter per key of a JSON object, in order. Anything else, JSON or not, becomes the single
// string parameter "arguments" with the original text.
std::vector<CallParameter> SplitCallArguments(PromptForm form, std::string_view arguments);

}  // namespace deepinfer
