// Keeps work away from workers, and from pairs of them, that failed at it lately: open for a while
// after too many failures, then half open, which lets one try through at a time until one of them
// went well (docs/cluster.md §4).
// Thread rule: one caller at a time. Owner: Router.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace deepinfer {

struct RouteBreakerOptions {
  int32_t failures_to_open = 1;
  int64_t window_us = 60'000'000;  // older failures count no more
  int64_t open_us = 1'000'000;     // the first time; twice as long each time it opens again
  int64_t most_open_us = 30'000'000;
  int64_t try_us = 2'000'000;  // half open: between two tries that nobody heard of again
};

class RouteBreaker {
 public:
  explicit RouteBreaker(const RouteBreakerOptions& options) : options_(options) {}

  // What never failed costs nothing.
  bool empty() const { return states_.empty(); }
  bool Allows(const std::string& name, int64_t now_us) const;
  // Work goes there now.
  void NoteTry(const std::string& name, int64_t now_us);
  void NoteFailure(const std::string& name, int64_t now_us);
  void NoteSuccess(const std::string& name) { states_.erase(name); }

  size_t num_open(int64_t now_us) const;
  int64_t num_openings() const { return num_openings_; }

 private:
  struct State {
    std::vector<int64_t> failures_us;  // within the window, the last ones
    int32_t openings = 0;              // in a row
    bool trying = false;               // a try since it opened
    int64_t barred_until_us = 0;       // 0: it never opened
  };
  bool IsOver(const State& state, int64_t now_us) const;

  const RouteBreakerOptions options_;
  std::unordered_map<std::string, State> states_;
  int64_t num_openings_ = 0;
};

}  // namespace deepinfer
