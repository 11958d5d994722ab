// Finds added tokens in text: leftmost first, among those the longest.
// Thread rule: immutable after construction. Owner: Tokenizer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace deepinfer {

class AddedTokenMatcher {
 public:
  struct Pattern {
    std::string_view content;
    int32_t id;
  };
  struct Match {
    size_t begin;
    size_t end;  // begin == end: nothing found
    int32_t id;
  };

  // Patterns are distinct and not empty; only read during construction.
  explicit AddedTokenMatcher(std::vector<Pattern> patterns);

  // First match at or after `from`. O(bytes scanned * longest pattern) at worst.
  Match FindNext(std::string_view text, size_t from) const;

 private:
  // A byte trie; the children of a node lie side by side, sorted by label.
  struct Node {
    uint32_t first_child = 0;
    uint16_t num_children = 0;
    unsigned char label = 0;
    int32_t id = -1;  // of the pattern that ends here
  };

  const Node* Child(const Node& node, unsigned char label) const;

  std::vector<Node> nodes_;
  // By first byte: index of the root's child, 0 (the root itself) for none.
  std::array<uint32_t, 256> first_bytes_{};
};

}  // namespace deepinfer
