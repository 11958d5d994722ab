#include "cluster/registration.h"

#include <algorithm>
#include <random>
#include <utility>

#include "base/log.h"

namespace deepinfer {

Registration::Registration(std::unique_ptr<Registry> registry, std::string key, std::string value,
                           const RegistrationOptions& options)
    : registry_(std::move(registry)),
      key_(std::move(key)),
      value_(std::move(value)),
      options_(options),
      backoff_(options.least_backoff),
      thread_([this] { Loop(); }) {}

Registration::~Registration() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
  if (lease_ != 0) (void)registry_->RevokeLease(lease_);
}

void Registration::Loop() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    lock.unlock();
    const std::chrono::milliseconds wait = Turn();
    lock.lock();
    changed_.wait_for(lock, wait, [this] { return stop_; });
  }
}

Status Registration::Register() {
  DI_ASSIGN_OR_RETURN(const int64_t lease, registry_->GrantLease(options_.lease));
  DI_RETURN_IF_ERROR(registry_->Put(key_, value_, lease));
  lease_ = lease;
  Log(LogLevel::kInfo, "registry.registered", {{"key", key_}});
  return OkStatus();
}

std::chrono::milliseconds Registration::Turn() {
  std::chrono::seconds left = options_.lease;
  Status status;
  if (lease_ == 0) {
    status = Register();
  } else {
    const Result<std::chrono::seconds> kept = registry_->KeepAlive(lease_);
    status = kept.status();
    if (kept.ok()) left = *kept;
    if (status.code() == StatusCode::kNotFound) {
      Log(LogLevel::kWarning, "registry.lease_lost", {{"key", key_}});
      lease_ = 0;
      status = Register();
    }
  }
  if (status.ok()) {
    backoff_ = options_.least_backoff;
    return std::chrono::duration_cast<std::chrono::milliseconds>(left) / 2;
  }
  if (backoff_ == options_.least_backoff) {
    Log(LogLevel::kWarning, "registry.unreachable", {{"key", key_}, {"status", status}});
  }
  // Many processes lose the registry together; they need not come back together.
  static thread_local std::minstd_rand random{std::random_device{}()};
  const std::chrono::milliseconds wait(
      std::uniform_int_distribution<int64_t>(backoff_.count() / 2, backoff_.count())(random));
  backoff_ = std::min(backoff_ * 2, options_.most_backoff);
  return wait;
}

}  // namespace deepinfer
