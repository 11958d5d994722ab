// Byte-level BPE tokenizer read from a checkpoint's tokenizer.json (encoding.md §2, §3).
// Thread rule: immutable after load; every method may be called from any thread.
// Owner: whoever loaded it; everything else borrows a reference.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace deepinfer {

class Tokenizer {
 public:
  // Reads `path`, or `path`/tokenizer.json when `path` is a directory.
  // Errors: not_found; data_corruption for a malformed file; unsupported for a normaliser,
  // pre-tokenizer, decoder, model kind or flag that would change ids and is not implemented.
  static Result<std::unique_ptr<Tokenizer>> Load(const std::filesystem::path& path);
  static Result<std::unique_ptr<Tokenizer>> FromJson(std::string_view json);

  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Appends the ids of ordinary text: a string that looks like an added token is plain text.
  // Invalid UTF-8 is replaced first (base/utf8.h). Callers join neighbouring text before the call:
  // encoding in parts gives other ids.
  void EncodeText(std::string_view utf8, std::vector<int32_t>* ids) const;

  // As EncodeText, but added tokens become their single id (leftmost, then longest).
  void EncodeWithSpecials(std::string_view utf8, std::vector<int32_t>* ids) const;

  // Bytes an id stands for: possibly not valid UTF-8 on their own; an added token's string; empty
  // for an id that does not exist.
  std::string_view TokenBytes(int32_t id) const;

  // The key in the vocabulary ("Ġthe" for the bytes " the"); empty for an id that does not exist.
  std::string_view TokenString(int32_t id) const;

  bool IsValidId(int32_t id) const;
  bool IsAdded(int32_t id) const;

  // Id of the added token with exactly this content.
  std::optional<int32_t> FindAdded(std::string_view content) const;

  // One past the largest id. Ids below it may be holes: see IsValidId.
  int32_t vocab_size() const;

  // The concatenated bytes as a finished text: whatever is not valid UTF-8, an incomplete tail
  // included, becomes U+FFFD. (Detokenizer drops the tail instead.) Ids that do not exist
  // contribute nothing. skip_added leaves added tokens out.
  std::string Decode(std::span<const int32_t> ids, bool skip_added = false) const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);

  std::unique_ptr<const Impl> impl_;
};

}  // namespace deepinfer
