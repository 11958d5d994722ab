#include "cluster/hand_off_sender.h"

#include <chrono>
#include <utility>
#include <vector>

#include "base/log.h"

namespace deepinfer {

namespace {

constexpr std::chrono::milliseconds kStopLook{20};

}  // namespace

HandOffSender::HandOffSender(HandOffSenderOptions options, WorkerInfo own, const Clock* clock)
    : options_(std::move(options)), own_(std::move(own)), clock_(clock) {}

HandOffSender::~HandOffSender() {
  std::vector<std::shared_ptr<HandOffTransfer>> left;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [run, transfer] : transfers_) left.push_back(transfer);
    left.insert(left.end(), started_.begin(), started_.end());
  }
  for (const auto& transfer : left) transfer->Stop(Unavailable("the worker stops"));
  for (const auto& transfer : left) transfer->Join();
}

std::shared_ptr<HandOffTransfer> HandOffSender::Open(HandOffTarget target) {
  auto transfer = std::make_shared<HandOffTransfer>(this, std::move(target));
  const std::lock_guard lock(mutex_);
  transfers_[transfer->run()] = transfer;
  return transfer;
}

void HandOffSender::Cancel(const std::string& run) {
  std::shared_ptr<HandOffTransfer> transfer;
  {
    const std::lock_guard lock(mutex_);
    const auto it = transfers_.find(run);
    if (it == transfers_.end()) return;
    transfer = it->second;
  }
  transfer->Stop(Cancelled("the request was cancelled"));
}

bool HandOffSender::IsIdle(Link* link, int64_t now_us) const {
  const std::unique_lock lock(link->mutex, std::try_to_lock);
  if (!lock.owns_lock() || link->dialling) return false;
  const bool used = link->connection != nullptr && link->connection.use_count() > 1;
  if (used) {
    link->idle_since_us = 0;
    return false;
  }
  if (link->idle_since_us == 0) link->idle_since_us = now_us;
  return link->connection == nullptr || link->connection->lost() ||
         now_us - link->idle_since_us >= options_.idle_connection_us;
}

void HandOffSender::Sweep() {
  const int64_t now_us = clock_->NowUs();
  // Their ends, outside of the lock.
  std::vector<std::shared_ptr<HandOffTransfer>> over;
  std::vector<std::shared_ptr<Link>> idle;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(started_, [&](const auto& transfer) {
      if (!transfer->over()) return false;
      over.push_back(transfer);
      return true;
    });
    for (auto it = links_.begin(); it != links_.end();) {
      const bool ends = it->second.use_count() == 1 && IsIdle(it->second.get(), now_us);
      if (ends) idle.push_back(std::move(it->second));
      it = ends ? links_.erase(it) : std::next(it);
    }
  }
  for (const auto& transfer : over) transfer->Join();
}

Result<std::shared_ptr<HandOffConnection>> HandOffSender::Connect(
    const std::string& endpoint, const std::function<bool()>& stopped) {
  std::shared_ptr<Link> link;
  {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Link>& known = links_[endpoint];
    if (known == nullptr) known = std::make_shared<Link>();
    link = known;
  }
  std::unique_lock lock(link->mutex);
  while (link->connection == nullptr || link->connection->lost()) {
    if (stopped()) return Cancelled("the hand-off was stopped");
    if (link->dialling) {
      // One dials for all: a worker that is silent takes the same time from everybody.
      const uint64_t before = link->num_dials;
      const auto is_over = [&] { return link->num_dials != before; };
      if (!link->changed.wait_for(lock, kStopLook, is_over)) continue;
      // Whoever dialled may have given up for reasons of its own.
      if (link->failure.ok() || link->failure.code() == StatusCode::kCancelled) continue;
      return link->failure;
    }
    link->dialling = true;
    lock.unlock();
    Result<std::shared_ptr<HandOffConnection>> dialled =
        HandOffConnection::Dial(endpoint, own_, {options_.security, options_.greet_limit, stopped});
    lock.lock();
    link->dialling = false;
    ++link->num_dials;
    link->failure = dialled.status();
    if (dialled.ok()) link->connection = *std::move(dialled);
    link->changed.notify_all();
    if (!link->failure.ok()) return link->failure;
  }
  return link->connection;
}

void HandOffSender::NoteStart(std::shared_ptr<HandOffTransfer> transfer) {
  const std::lock_guard lock(mutex_);
  ++counters_.pins_acquired;
  started_.push_back(std::move(transfer));
}

void HandOffSender::NoteEnd(const HandOffTransfer& transfer, const Status& status,
                            int64_t size_bytes, bool completed) {
  {
    const std::lock_guard lock(mutex_);
    ++counters_.pins_released;
    if (!completed) return;
    ++(status.ok() ? counters_.committed : counters_.failed);
    if (status.ok()) counters_.bytes_sent += size_bytes;
  }
  if (status.ok() || status.code() == StatusCode::kCancelled) return;
  Log(LogLevel::kWarning, "hand_off.failed",
      {{"request_id", transfer.target().request_id},
       {"endpoint", transfer.target().endpoint},
       {"status", status}});
}

void HandOffSender::Forget(const HandOffTransfer* transfer) {
  std::shared_ptr<HandOffTransfer> forgotten;  // may end outside of the lock
  const std::lock_guard lock(mutex_);
  const auto it = transfers_.find(transfer->run());
  if (it == transfers_.end() || it->second.get() != transfer) return;
  forgotten = std::move(it->second);
  transfers_.erase(it);
}

void HandOffSender::Count(HandOffCounters* counters) const {
  const std::lock_guard lock(mutex_);
  counters->pins_acquired = counters_.pins_acquired;
  counters->pins_released = counters_.pins_released;
  counters->committed = counters_.committed;
  counters->failed = counters_.failed;
  counters->bytes_sent = counters_.bytes_sent;
}

size_t HandOffSender::num_connections() const {
  const std::lock_guard lock(mutex_);
  return links_.size();
}

}  // namespace deepinfer
