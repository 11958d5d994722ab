// Whether a text is a well-formed regular expression of the kind JSON Schema's `pattern` takes:
// ECMAScript syntax plus inline flags, atomic groups, possessive quantifiers and look-around.
// Nothing is compiled or matched, so no pattern can cost more than one pass.
// Thread rule: pure function.
#pragma once

#include <string_view>

namespace deepinfer {

bool IsRegexSyntax(std::string_view pattern);

}  // namespace deepinfer
