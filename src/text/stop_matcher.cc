#include "text/stop_matcher.h"

#include <deque>

namespace deepinfer {

StopPatterns::StopPatterns(const std::vector<std::string>& patterns) {
  nodes_.emplace_back();
  for (const std::string& pattern : patterns) {
    if (pattern.empty()) continue;
    patterns_.push_back(pattern);
    Insert(static_cast<int32_t>(patterns_.size()) - 1);
  }
  LinkFailures();
}

int32_t StopPatterns::Child(int32_t node, unsigned char byte) const {
  for (const Edge& edge : nodes_[static_cast<size_t>(node)].edges) {
    if (edge.byte == byte) return edge.target;
  }
  return -1;
}

int32_t StopPatterns::Step(int32_t node, unsigned char byte) const {
  while (true) {
    const int32_t child = Child(node, byte);
    if (child >= 0) return child;
    if (node == 0) return 0;
    node = nodes_[static_cast<size_t>(node)].fail;
  }
}

void StopPatterns::Insert(int32_t pattern) {
  int32_t node = 0;
  for (char c : patterns_[static_cast<size_t>(pattern)]) {
    const auto byte = static_cast<unsigned char>(c);
    int32_t child = Child(node, byte);
    if (child < 0) {
      child = static_cast<int32_t>(nodes_.size());
      const int32_t depth = nodes_[static_cast<size_t>(node)].depth + 1;
      nodes_[static_cast<size_t>(node)].edges.push_back({byte, child});
      nodes_.emplace_back();
      nodes_.back().depth = depth;
    }
    node = child;
  }
  nodes_[static_cast<size_t>(node)].pattern = pattern;
}

void StopPatterns::LinkFailures() {
  std::deque<int32_t> queue;
  for (const Edge& edge : nodes_[0].edges) queue.push_back(edge.target);
  while (!queue.empty()) {
    const int32_t node = queue.front();
    queue.pop_front();
    // Breadth first: the failure node is shallower, so what it holds is final already.
    const int32_t fail = nodes_[static_cast<size_t>(node)].fail;
    nodes_[static_cast<size_t>(node)].held = nodes_[static_cast<size_t>(node)].edges.empty()
                                                 ? nodes_[static_cast<size_t>(fail)].held
                                                 : nodes_[static_cast<size_t>(node)].depth;
    if (nodes_[static_cast<size_t>(node)].pattern < 0) {
      nodes_[static_cast<size_t>(node)].pattern = nodes_[static_cast<size_t>(fail)].pattern;
    }
    for (const Edge& edge : nodes_[static_cast<size_t>(node)].edges) {
      nodes_[static_cast<size_t>(edge.target)].fail = Step(fail, edge.byte);
      queue.push_back(edge.target);
    }
  }
}

StopMatcher::Advance StopMatcher::Push(std::string_view text, bool may_end) {
  const size_t held_before = held_;
  for (size_t i = 0; i < text.size(); ++i) {
    node_ = patterns_.Step(node_, static_cast<unsigned char>(text[i]));
    const StopPatterns::Node& node = patterns_.nodes_[static_cast<size_t>(node_)];
    if (may_end && node.pattern >= 0) {
      matched_pattern_ = node.pattern;
      held_ = 0;
      return {held_before + i + 1 - match().size(), i + 1};
    }
  }
  held_ = static_cast<size_t>(patterns_.nodes_[static_cast<size_t>(node_)].held);
  return {held_before + text.size() - held_, text.size()};
}

void StopMatcher::Restart() {
  node_ = 0;
  held_ = 0;
  matched_pattern_ = -1;
}

}  // namespace deepinfer
