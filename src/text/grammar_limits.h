// Limits of grammar sources that are checked before anything reads them (structured_outputs.md §4).
// Thread rule: constants.
#pragma once

#include <cstddef>

namespace deepinfer {

// Of a schema, an expression, a grammar or all tools of a request together.
inline constexpr size_t kMaxGrammarSourceBytes = size_t{4} << 20;

}  // namespace deepinfer
