// Reads and checks a tokenizer.json of the byte-level BPE kind.
// Thread rule: pure function. Owner: Tokenizer, which consumes the result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/bpe.h"
#include "text/pretokenizer.h"

namespace deepinfer {

// Released files are 6 to 30 MB. The cap bounds what a hostile file can make us allocate.
inline constexpr size_t kMaxTokenizerFileBytes = size_t{64} << 20;

// Tables are indexed by id, so one stray id must not cost gigabytes.
inline constexpr int32_t kMaxVocabSize = 1 << 22;

// The longest released added token has 40 bytes.
inline constexpr size_t kMaxAddedTokenBytes = 256;

struct AddedTokenEntry {
  int32_t id;
  std::string content;
  // Matched only in what the tokens with `normalized` false left over.
  bool normalized;
};

struct TokenizerFile {
  PreTokenizerKind pre_tokenizer = PreTokenizerKind::kThreePass;
  // By id; empty: no token has this id. Added tokens stand here with their content.
  std::vector<std::string> token_strings;
  std::vector<AddedTokenEntry> added_tokens;
  std::vector<BpeMerge> merges_by_rank;
};

// Guarantees on success: ids are in [0, kMaxVocabSize) and distinct; strings are valid UTF-8;
// contents of added tokens are distinct and 1 to kMaxAddedTokenBytes long; merge pairs are
// distinct and their three ids exist.
// Errors: data_corruption (malformed, naming the place), unsupported (naming the kind or flag).
Result<TokenizerFile> ParseTokenizerFile(std::string_view json);

}  // namespace deepinfer
