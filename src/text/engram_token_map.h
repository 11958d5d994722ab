// The token map of Engram hashing: tokens that differ only in case, accents or spacing share an id.
// Thread rule: pure function. Owner: the model loader.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"

namespace deepinfer {

class Tokenizer;

// [tokenizer.vocab_size()] class ids, numbered in first-seen order of the normalised text
// (model.md §10.1). Error: internal when the Unicode library fails.
Result<std::vector<int32_t>> BuildEngramTokenMap(const Tokenizer& tokenizer);

}  // namespace deepinfer
