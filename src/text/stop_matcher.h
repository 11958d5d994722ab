// Finds stop strings in text that arrives in pieces (encoding.md §9): the match that ends first
// wins, among matches with one end the longest. Text that may still begin a match is held back.
// Thread rule: one object, one thread. Owner: the output parser of one choice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer {

// Aho-Corasick automaton over bytes: O(1) amortised steps per byte of text for any number of
// patterns. Immutable after construction.
class StopPatterns {
 public:
  // Empty patterns are left out.
  explicit StopPatterns(const std::vector<std::string>& patterns);

  bool empty() const { return patterns_.empty(); }

 private:
  friend class StopMatcher;

  struct Edge {
    unsigned char byte;
    int32_t target;
  };
  struct Node {
    std::vector<Edge> edges;
    int32_t fail = 0;
    int32_t depth = 0;
    int32_t held = 0;      // length of the longest proper prefix of a pattern that ends here
    int32_t pattern = -1;  // longest pattern that ends here
  };

  int32_t Child(int32_t node, unsigned char byte) const;
  int32_t Step(int32_t node, unsigned char byte) const;
  void Insert(int32_t pattern);
  void LinkFailures();

  std::vector<std::string> patterns_;
  std::vector<Node> nodes_;
};

class StopMatcher {
 public:
  struct Advance {
    // Leading bytes of (text held so far + text) that no match can claim any more. When matched,
    // the text in front of the match.
    size_t num_released_bytes = 0;
    // Bytes of `text` that were read: all of them, or up to the end of the match.
    size_t num_read_bytes = 0;
  };

  explicit StopMatcher(const std::vector<std::string>& patterns) : patterns_(patterns) {}

  bool active() const { return !patterns_.empty(); }

  // Reads on to the end of `text` or of the first match. Without `may_end` no match ends in it, but
  // one may begin in it. Precondition: !matched().
  Advance Push(std::string_view text, bool may_end = true);

  // Bytes at the end of the input that begin a pattern; 0 when matched.
  size_t num_held_bytes() const { return held_; }

  bool matched() const { return matched_pattern_ >= 0; }
  // Precondition: matched(). Position in the list given, empty patterns not counted.
  int32_t match_index() const { return matched_pattern_; }
  const std::string& match() const {
    return patterns_.patterns_[static_cast<size_t>(matched_pattern_)];
  }

  // Forgets the match and the held bytes; what follows is new text.
  void Restart();

 private:
  StopPatterns patterns_;
  int32_t node_ = 0;
  size_t held_ = 0;
  int32_t matched_pattern_ = -1;
};

}  // namespace deepinfer
