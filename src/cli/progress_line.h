// A bar on stderr that is rewritten while a command works; nothing where stderr is no terminal.
// Thread rule: owner thread.
#pragma once

#include <cstdint>
#include <string_view>

namespace deepinfer {

class ProgressLine {
 public:
  // total: steps of the whole work, at least 1.
  explicit ProgressLine(int64_t total);
  // Erases the bar: what follows starts on a clean line.
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // Steps done so far, and what goes on now.
  void Show(int64_t done, std::string_view text) const;

 private:
  int64_t total_;
  bool visible_;
};

}  // namespace deepinfer
