#include "server/server_state.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/version.h"

namespace deepinfer {

void LiveCount::Add() {
  std::lock_guard lock(mutex_);
  ++count_;
}

void LiveCount::Remove() {
  // Notified under the lock: the waiter may destroy this object as soon as it is released.
  std::lock_guard lock(mutex_);
  if (--count_ == 0) zero_.notify_all();
}

void LiveCount::WaitZero() {
  std::unique_lock lock(mutex_);
  zero_.wait(lock, [this] { return count_ == 0; });
}

bool LiveCount::WaitZeroUntil(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  return zero_.wait_until(lock, deadline, [this] { return count_ == 0; });
}

ServerState::ServerState(ServerOptions options_in, ApiKeys keys_in,
                         std::unique_ptr<KeyBudgets> budgets_in, const LoadProgress* progress_in,
                         std::unique_ptr<LedgerWriter> ledger)
    : options(std::move(options_in)),
      keys(std::move(keys_in)),
      budgets(std::move(budgets_in)),
      progress(progress_in),
      prepare_pool(options.prepare_threads, options.max_prepare_queue),
      tokenize_pool(options.tokenize_threads, options.max_prepare_queue),
      stream_pool(options.stream_threads, std::numeric_limits<size_t>::max()),
      metrics(options.served_model_names.front(), options.metrics_compat),
      account(options, std::move(ledger), budgets.get()),
      replay(clock) {}

std::shared_ptr<const ServedModel> ServerState::model() const {
  std::lock_guard lock(mutex_);
  return model_;
}

void ServerState::SetModel(std::shared_ptr<const ServedModel> model) {
  std::lock_guard lock(mutex_);
  model_ = std::move(model);
}

bool ServerState::Serves(std::string_view model_name) const {
  const auto& names = options.served_model_names;
  return std::find(names.begin(), names.end(), model_name) != names.end() ||
         options.model_aliases.contains(std::string(model_name));
}

std::string ServerState::SystemFingerprint() const {
  return std::string("deepinfer-").append(kVersion) + "-" + options.config_hash.substr(0, 8);
}

bool ServerState::stalled() const {
  const auto current = model();
  return current != nullptr && !current->context.gateway->healthy();
}

std::optional<ApiError> ServerState::Unavailability() const {
  if (failed.load(std::memory_order_acquire)) {
    ApiError error = OverloadedError("The model failed to load");
    error.retry_after_s = -1;
    return error;
  }
  const auto current = model();
  if (!current) return OverloadedError("Loading model");
  if (draining.load(std::memory_order_acquire) || current->context.gateway->draining()) {
    return OverloadedError("The server is shutting down");
  }
  return std::nullopt;
}

}  // namespace deepinfer
