// Turns a stream of token ids into text, complete code points only (encoding.md §2).
// Thread rule: one stream, one thread. Owner: the stream's sequence.
#pragma once

#include <cstdint>
#include <string>

#include "text/tokenizer.h"

namespace deepinfer {

class Detokenizer {
 public:
  // `tokenizer` is borrowed and outlives this object.
  explicit Detokenizer(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  // Text that became complete with `id`; bytes of an unfinished code point wait for the next id, a
  // byte that can no longer become valid gives U+FFFD.
  std::string Push(int32_t id);

  // Ends the stream: an unfinished code point is dropped, and the object is as new. Returns the
  // text still due; Push holds back nothing but unfinished code points, so it is empty.
  std::string Finish();

  // Bytes held back: 0 to 3.
  size_t num_pending_bytes() const { return pending_.size(); }

 private:
  const Tokenizer* tokenizer_;
  std::string pending_;
};

}  // namespace deepinfer
