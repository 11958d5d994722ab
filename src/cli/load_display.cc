#include "cli/load_display.h"

#include <fmt/core.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>

#include "base/log.h"
#include "cli/io.h"

namespace deepinfer {

namespace {
constexpr std::chrono::milliseconds kRefresh{100};
constexpr int kBarWidth = 40;
}  // namespace

LoadDisplay::LoadDisplay(const LoadProgress* progress, bool lines)
    : progress_(progress), terminal_(isatty(STDERR_FILENO) == 1), lines_(lines) {
  if (terminal_ || lines_) thread_ = std::thread([this] { Loop(); });
}

LoadDisplay::~LoadDisplay() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
  // Erase the bar: what follows starts on a clean line.
  if (bar_visible_) Tell("\r\033[K");
}

void LoadDisplay::Loop() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, kRefresh, [this] { return stop_; })) {
    if (terminal_) {
      ShowBar();
    } else {
      ShowLine();
    }
  }
  if (!terminal_) ShowLine();
}

void LoadDisplay::ShowBar() {
  const uint64_t total = progress_->total(), done = progress_->done();
  const int filled = total == 0 ? 0 : static_cast<int>(done * kBarWidth / total);
  Tell("\r{:<9} [{}{}] {:.1f} / {:.1f} MB\033[K", LoadPhaseName(progress_->phase()),
       std::string(static_cast<size_t>(filled), '#'),
       std::string(static_cast<size_t>(kBarWidth - filled), '.'), static_cast<double>(done) / 1e6,
       static_cast<double>(total) / 1e6);
  std::fflush(stderr);
  bar_visible_ = true;
}

void LoadDisplay::ShowLine() {
  const uint64_t total = progress_->total();
  if (progress_->phase() != LoadPhase::kWeights || total == 0) return;
  const int tenth = static_cast<int>(progress_->done() * 10 / total);
  if (tenth == last_tenth_) return;
  last_tenth_ = tenth;
  Log(LogLevel::kInfo, "model.loading",
      {{"percent", 10 * tenth}, {"done_bytes", progress_->done()}, {"total_bytes", total}});
}

}  // namespace deepinfer
