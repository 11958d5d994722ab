#include "text/added_token_matcher.h"

#include <algorithm>

namespace deepinfer {

// Breadth first over the sorted patterns, because that is the order that puts siblings together.
AddedTokenMatcher::AddedTokenMatcher(std::vector<Pattern> patterns) {
  std::sort(patterns.begin(), patterns.end(),
            [](const Pattern& a, const Pattern& b) { return a.content < b.content; });
  struct Range {
    size_t begin;
    size_t end;  // patterns that share the node's prefix
    size_t depth;
  };
  std::vector<Range> ranges = {{0, patterns.size(), 0}};
  nodes_.emplace_back();
  for (size_t n = 0; n < nodes_.size(); ++n) {
    Range range = ranges[n];
    nodes_[n].first_child = static_cast<uint32_t>(nodes_.size());
    if (range.begin < range.end && patterns[range.begin].content.size() == range.depth) {
      nodes_[n].id = patterns[range.begin++].id;
    }
    while (range.begin < range.end) {
      const char label = patterns[range.begin].content[range.depth];
      size_t end = range.begin + 1;
      while (end < range.end && patterns[end].content[range.depth] == label) ++end;
      nodes_.emplace_back().label = static_cast<unsigned char>(label);
      ranges.push_back({range.begin, end, range.depth + 1});
      ++nodes_[n].num_children;
      range.begin = end;
    }
  }
  for (uint32_t i = 1; i <= nodes_[0].num_children; ++i) first_bytes_[nodes_[i].label] = i;
}

const AddedTokenMatcher::Node* AddedTokenMatcher::Child(const Node& node,
                                                        unsigned char label) const {
  const Node* begin = nodes_.data() + node.first_child;
  const Node* end = begin + node.num_children;
  const Node* child = std::lower_bound(
      begin, end, label, [](const Node& n, unsigned char wanted) { return n.label < wanted; });
  return child != end && child->label == label ? child : nullptr;
}

AddedTokenMatcher::Match AddedTokenMatcher::FindNext(std::string_view text, size_t from) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    const uint32_t first = first_bytes_[static_cast<unsigned char>(text[begin])];
    if (first == 0) continue;
    const Node* node = &nodes_[first];
    Match match = {begin, begin, -1};
    for (size_t i = begin + 1; node != nullptr; ++i) {
      if (node->id >= 0) match = {begin, i, node->id};
      if (i == text.size()) break;
      node = Child(*node, static_cast<unsigned char>(text[i]));
    }
    if (match.end != match.begin) return match;
  }
  return {text.size(), text.size(), -1};
}

}  // namespace deepinfer
