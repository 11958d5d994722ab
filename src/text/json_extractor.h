// Keeps only the JSON of an answer: drops text in front of the first `{` or `[`, a code fence
// around it and what follows that fence (encoding.md §17).
// Thread rule: one object, one thread. Owner: the output parser of one choice.
#pragma once

#include <cstddef>

#include "text/held_text.h"

namespace deepinfer {

class JsonExtractor {
 public:
  // In the order of the text, calls `keep(TextPiece)` for the JSON and `drop()` where text was
  // dropped for good, code fences not counted: the caller shows a space there, as a sign of life.
  template <typename Keep, typename Drop>
  void Push(const TextPiece& piece, Keep&& keep, Drop&& drop) {
    size_t i = 0;
    if (state_ == State::kSearching) {
      bool dropped = false;
      i = SkipToJson(piece.bytes, &dropped);
      if (dropped) drop();
    }
    if (state_ == State::kPlain) keep(piece.Sub(i));
    if (state_ == State::kFenced) i = PushFenced(piece, i, keep);
    if (state_ == State::kBehindFence && i < piece.bytes.size()) drop();
  }

  // End of the answer: a started closing fence is text.
  template <typename Sink>
  void Finish(Sink&& keep) {
    held_.ReleaseAll(keep);
  }

 private:
  enum class State : unsigned char { kSearching, kPlain, kFenced, kBehindFence };
  enum class Opening : unsigned char { kNone, kTicks, kLanguage, kOpen };

  // Offset of the JSON's first byte, or the size of `text`.
  size_t SkipToJson(std::string_view text, bool* dropped);
  void StepOpening(char c, bool* dropped);

  // Passes fenced text on, holding what may be the closing fence. Returns the offset behind it, or
  // the size of the piece.
  template <typename Sink>
  size_t PushFenced(const TextPiece& piece, size_t i, Sink&& keep) {
    for (; i < piece.bytes.size(); ++i) {
      if (piece.bytes[i] != kClosing[held_.size()]) held_.ReleaseAll(keep);
      if (piece.bytes[i] == kClosing[held_.size()]) {
        held_.Append(piece.Sub(i, 1));
        if (held_.size() < kClosing.size()) continue;
        held_.Clear();
        state_ = State::kBehindFence;
        return i + 1;
      }
      const size_t end = piece.bytes.find(kClosing.front(), i);
      const size_t count = (end == std::string_view::npos ? piece.bytes.size() : end) - i;
      keep(piece.Sub(i, count));
      i += count - 1;
    }
    return i;
  }

  static constexpr std::string_view kClosing = "\n```";

  State state_ = State::kSearching;
  Opening opening_ = Opening::kNone;
  int num_ticks_ = 0;
  HeldText held_;
};

}  // namespace deepinfer
