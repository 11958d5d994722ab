// Changes a byte of extents on their way, for tests: compiled into a worker with the test hooks
// only. Thread rule: as ExtentPath.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "transfer/extent_path.h"

namespace deepinfer {

class NoisyPath final : public ExtentPath {
 public:
  // Of all extents that share the counter every `each`-th one arrives changed, but none twice.
  // count is borrowed; on_change is called before such an extent goes out.
  NoisyPath(std::unique_ptr<ExtentPath> path, int each, std::atomic<int>* count,
            std::function<void()> on_change)
      : path_(std::move(path)), each_(each), count_(count), on_change_(std::move(on_change)) {}

  Status Send(const Extent& extent, std::span<const std::byte> bytes,
              SocketDeadline deadline) override {
    const int number = count_->fetch_add(1);
    if (number % each_ != each_ - 1 || !changed_.insert(extent.offset).second) {
      return path_->Send(extent, bytes, deadline);
    }
    on_change_();
    std::vector<std::byte> copy(bytes.begin(), bytes.end());
    copy[static_cast<size_t>(number) * 7919 % copy.size()] ^= std::byte{16};
    return path_->Send(extent, copy, deadline);
  }
  bool needs_message() const override { return path_->needs_message(); }
  void Interrupt() override { path_->Interrupt(); }

 private:
  const std::unique_ptr<ExtentPath> path_;
  const int each_;
  std::atomic<int>* const count_;
  const std::function<void()> on_change_;
  std::set<int64_t> changed_;  // offsets
};

}  // namespace deepinfer
