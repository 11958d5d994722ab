// Finds stop strings in text that arrives in pieces (encoding.md §9): the match that ends first
// wins, among matches with one end the longest. Text that may still begin a match is held back.
// Thread rule: StopPatterns is immutable and may be shared; a matcher belongs to one thread.
// Owner: the output parser of one choice.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer {

// Aho-Corasick automaton over bytes: O(1) amortised steps per byte for any number of patterns.
class StopPatterns {
 public:
  // Empty patterns are ignored.
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
    int32_t depth = 0;     // length of the longest pattern prefix that ends here
    int32_t pattern = -1;  // longest pattern that ends here
  };

  int32_t Child(int32_t node, unsigned char byte) const;
  void Insert(int32_t pattern);
  void LinkFailures();

  std::vector<std::string> patterns_;
  std::vector<Node> nodes_;
};

class StopMatcher {
 public:
  explicit StopMatcher(const std::vector<std::string>& patterns) : patterns_(patterns) {}

  bool active() const { return !patterns_.empty(); }

  // Scans `text`. Returns the number of leading bytes of (held text + text) that can be released
  // now; the rest is held, unless matched(): then they are the text before the match and nothing
  // else of the input counts. Bytes of `text` behind a match are not read.
  size_t Push(std::string_view text);

  // Bytes of the input that are held: the longest suffix that begins a pattern.
  size_t num_held_bytes() const { return held_; }

  bool matched() const { return matched_pattern_ >= 0; }
  // Precondition: matched().
  const std::string& match() const {
    return patterns_.patterns_[static_cast<size_t>(matched_pattern_)];
  }

 private:
  StopPatterns patterns_;
  int32_t node_ = 0;
  size_t held_ = 0;
  int32_t matched_pattern_ = -1;
};

}  // namespace deepinfer
