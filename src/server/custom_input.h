// The raw text of a custom tool's call out of its JSON arguments, piece by piece: the arguments
// {"input": "text"} give the text, any others give themselves (encoding.md §15).
// Thread rule: one object, one thread. Owner: the call it reads.
#pragma once

#include <string>
#include <string_view>

namespace deepinfer {

class CustomInput {
 public:
  // Takes a piece of the arguments and returns the text that is due.
  std::string Push(std::string_view piece);
  // The end of the arguments: what was held back.
  std::string Finish();

 private:
  enum class State : unsigned char { kOpening, kText, kRaw, kDone };

  std::string Unescape(std::string_view piece);

  State state_ = State::kOpening;
  std::string held_;  // kOpening: all so far; kText: an unfinished escape
};

}  // namespace deepinfer
