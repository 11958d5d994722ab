// Regular expressions of JSON Schema (`pattern`) on their way to the grammar compiler, which copies
// what they match between the quotes of a JSON string as it is. Internal to the grammar code.
// Thread rule: pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace deepinfer {

struct JsonPattern {
  std::string expression;
  bool has_escapes = false;  // it means something else outside a JSON string
};

// The expression for the spelling inside a JSON string. A quotation mark, a backslash or a control
// character that the pattern names, alone or in a class, becomes its escape; ranges, negated
// classes, `.` and \s leave these characters out. A pattern that can match none of them stays as
// it is. Nothing where a part cannot be rewritten.
std::optional<JsonPattern> PatternInsideJsonString(std::string_view pattern);

// Whether the compiler knows every construct of a well-formed expression. It does not know
// references back, assertions about words and about what stands before, Unicode properties, flags,
// atomic groups, possessive quantifiers and braces that stand for themselves.
bool IsKnownToCompiler(std::string_view pattern);

}  // namespace deepinfer
