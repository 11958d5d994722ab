// Waits for what another thread or process brings about.
// Thread rule: any thread.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

namespace deepinfer {

// False when it did not come true for longer than any machine takes.
inline bool Eventually(const std::function<bool()>& what) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!what()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace deepinfer
