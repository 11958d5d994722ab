#include "transfer/extent_push.h"

#include <algorithm>
#include <utility>

#include "base/crc32c.h"

namespace deepinfer {

ExtentPush::ExtentPush(uint64_t ticket, std::span<const std::byte> bytes, int64_t window_bytes,
                       ExtentPath* path, std::function<void(const Extent&)> announce)
    : ticket_(ticket),
      bytes_(bytes),
      window_bytes_(window_bytes),
      path_(path),
      announce_(std::move(announce)) {
  if (window_bytes < kExtentBytes || window_bytes % kExtentBytes != 0) {
    stopped_ = InvalidRequest("the window of a landing holds no whole number of extents");
  }
}

Status ExtentPush::Run(std::chrono::milliseconds stall_limit) {
  while (true) {
    Extent extent;
    DI_RETURN_IF_ERROR(Next(stall_limit, &extent));
    if (extent.size_bytes == 0) return OkStatus();
    const auto from =
        bytes_.subspan(static_cast<size_t>(extent.offset), static_cast<size_t>(extent.size_bytes));
    const auto deadline = std::chrono::steady_clock::now() + stall_limit;
    if (Status status = path_->Send(extent, from, deadline); !status.ok()) {
      // Whoever stopped it says why better than the connection it cut.
      const std::lock_guard lock(mutex_);
      return stopped_.ok() ? std::move(status) : stopped_;
    }
    if (path_->needs_message()) announce_(extent);
  }
}

Status ExtentPush::Next(std::chrono::milliseconds stall_limit, Extent* extent) {
  const auto size = static_cast<int64_t>(bytes_.size());
  std::unique_lock lock(mutex_);
  auto deadline = std::chrono::steady_clock::now() + stall_limit;
  while (stopped_.ok()) {
    if (!again_.empty()) {
      *extent = again_.front();
      again_.pop_front();
      return OkStatus();
    }
    if (next_offset_ == size && on_the_way_.empty()) return OkStatus();
    const int64_t next_size = std::min(kExtentBytes, size - next_offset_);
    const int64_t oldest = on_the_way_.empty() ? next_offset_ : on_the_way_.begin()->first;
    if (next_size > 0 && next_offset_ + next_size - oldest <= window_bytes_) {
      const auto offset = static_cast<size_t>(next_offset_);
      *extent = {ticket_, next_offset_, next_size,
                 Crc32c(bytes_.subspan(offset, static_cast<size_t>(next_size)))};
      on_the_way_.emplace(next_offset_, *extent);
      crcs_.push_back(extent->crc32c);
      next_offset_ += next_size;
      return OkStatus();
    }
    const size_t before = on_the_way_.size();
    if (changed_.wait_until(lock, deadline) == std::cv_status::timeout) {
      return DeadlineExceeded("the receiver of a transfer stands still");
    }
    if (on_the_way_.size() != before) deadline = std::chrono::steady_clock::now() + stall_limit;
  }
  return stopped_;
}

void ExtentPush::OnAck(int64_t offset, bool corrupt) {
  {
    const std::lock_guard lock(mutex_);
    const auto it = on_the_way_.find(offset);
    if (it == on_the_way_.end()) return;
    if (corrupt && !repeated_.insert(offset).second) {
      if (stopped_.ok()) stopped_ = Unavailable("an extent arrived broken twice");
    } else if (corrupt) {
      again_.push_back(it->second);
    } else {
      on_the_way_.erase(it);
    }
  }
  changed_.notify_all();
}

void ExtentPush::Stop(Status why) {
  {
    const std::lock_guard lock(mutex_);
    if (!stopped_.ok()) return;
    stopped_ = std::move(why);
  }
  changed_.notify_all();
  path_->Interrupt();
}

Manifest ExtentPush::manifest() const {
  const std::lock_guard lock(mutex_);
  return {static_cast<int64_t>(bytes_.size()), static_cast<int32_t>(crcs_.size()),
          ManifestCrc(crcs_)};
}

}  // namespace deepinfer
