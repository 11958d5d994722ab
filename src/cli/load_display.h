// Shows a LoadProgress on stderr while it lives: a bar on a terminal, otherwise (and only when
// `lines` is set) a log line per 10 %.
// Thread rule: owner thread; polls on a thread of its own.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/load_progress.h"

namespace deepinfer {

class LoadDisplay {
 public:
  LoadDisplay(const LoadProgress* progress, bool lines);
  ~LoadDisplay();
  LoadDisplay(const LoadDisplay&) = delete;
  LoadDisplay& operator=(const LoadDisplay&) = delete;

 private:
  void Loop();
  void ShowBar();
  void ShowLine();

  const LoadProgress* progress_;
  bool terminal_;
  bool lines_;
  bool bar_visible_ = false;
  int last_tenth_ = -1;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace deepinfer
