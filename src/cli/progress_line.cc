#include "cli/progress_line.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "cli/io.h"

namespace deepinfer {

namespace {
constexpr int64_t kBarWidth = 32;
}  // namespace

ProgressLine::ProgressLine(int64_t total)
    : total_(std::max<int64_t>(1, total)), visible_(isatty(STDERR_FILENO) == 1) {}

ProgressLine::~ProgressLine() {
  if (visible_) Tell("\r\033[K");
}

void ProgressLine::Show(int64_t done, std::string_view text) const {
  if (!visible_) return;
  const auto filled = static_cast<size_t>(std::min(done, total_) * kBarWidth / total_);
  Tell("\r[{}{}] {}/{} {}\033[K", std::string(filled, '#'), std::string(kBarWidth - filled, '.'),
       done, total_, text);
  std::fflush(stderr);
}

}  // namespace deepinfer
