// Text that waits until no rule can claim it any more, with the tokens it came from.
// Thread rule: one object, one thread. Owner: a stage of the output parser.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer {

// A run of text from tokens [first_token, last_token]; -1 when it came from no token.
struct TextPiece {
  std::string_view bytes;
  int64_t first_token = -1;
  int64_t last_token = -1;

  TextPiece Sub(size_t offset, size_t count = std::string_view::npos) const {
    return {bytes.substr(offset, count), first_token, last_token};
  }
};

// Appending and releasing cost O(1) amortised per byte, whatever is held.
class HeldText {
 public:
  bool empty() const { return begin_ == bytes_.size(); }
  size_t size() const { return bytes_.size() - begin_; }
  std::string_view bytes() const { return std::string_view(bytes_).substr(begin_); }
  bool EndsWith(char c) const { return !empty() && bytes_.back() == c; }

  void Append(const TextPiece& piece) {
    if (piece.bytes.empty()) return;
    bytes_ += piece.bytes;
    if (first_run_ < runs_.size() && runs_.back().first_token == piece.first_token &&
        runs_.back().last_token == piece.last_token) {
      runs_.back().end = bytes_.size();
    } else {
      runs_.push_back({bytes_.size(), piece.first_token, piece.last_token});
    }
  }

  void Clear() {
    bytes_.clear();
    runs_.clear();
    begin_ = 0;
    first_run_ = 0;
  }

  // Hands the first `count` bytes to `sink(TextPiece)` and keeps the rest. `sink` must not touch
  // this object.
  template <typename Sink>
  void Release(size_t count, Sink&& sink) {
    const size_t end = begin_ + count;
    while (begin_ < end) {
      const Run& run = runs_[first_run_];
      const size_t piece_end = run.end < end ? run.end : end;
      sink(TextPiece{std::string_view(bytes_).substr(begin_, piece_end - begin_), run.first_token,
                     run.last_token});
      begin_ = piece_end;
      if (piece_end == run.end) ++first_run_;
    }
    if (empty()) {
      Clear();
    } else if (begin_ > bytes_.size() / 2) {
      Compact();
    }
  }

  template <typename Sink>
  void ReleaseAll(Sink&& sink) {
    Release(size(), sink);
  }

 private:
  struct Run {
    size_t end;  // in bytes_
    int64_t first_token;
    int64_t last_token;
  };

  void Compact() {
    bytes_.erase(0, begin_);
    runs_.erase(runs_.begin(), runs_.begin() + static_cast<std::ptrdiff_t>(first_run_));
    for (Run& run : runs_) run.end -= begin_;
    begin_ = 0;
    first_run_ = 0;
  }

  std::string bytes_;
  std::vector<Run> runs_;
  size_t begin_ = 0;      // released bytes in front of the held ones
  size_t first_run_ = 0;  // run that holds begin_
};

}  // namespace deepinfer
