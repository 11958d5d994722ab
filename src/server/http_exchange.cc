// The hand-over of one answer from the threads that make it to the connection that writes it.
#include <algorithm>
#include <utility>

#include "server/http.h"

namespace deepinfer {
namespace {

char AsciiLower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

bool EqualNoCase(std::string_view a, std::string_view b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](char x, char y) {
           return AsciiLower(x) == AsciiLower(y);
         });
}

}  // namespace

std::string_view HttpRequest::Header(std::string_view name) const {
  for (const HttpHeader& header : headers) {
    if (EqualNoCase(header.name, name)) return header.value;
  }
  return {};
}

void HttpExchange::Respond(HttpResponse response) {
  {
    std::lock_guard lock(mutex_);
    if (started_ || disconnected_) return;
    started_ = true;
    finished_ = true;
    head_ = std::move(response);
  }
  Wake();
}

void HttpExchange::StartStream(HttpResponse head) {
  {
    std::lock_guard lock(mutex_);
    if (started_ || disconnected_) return;
    started_ = true;
    streaming_ = true;
    head_ = std::move(head);
  }
  Wake();
}

void HttpExchange::Send(std::string bytes, std::shared_ptr<void> hold) {
  if (bytes.empty()) return;
  {
    std::lock_guard lock(mutex_);
    if (!streaming_ || finished_ || disconnected_) return;
    sent_any_ = true;
    chunks_.push_back({std::move(bytes), std::move(hold)});
  }
  Wake();
}

void HttpExchange::SendAhead(std::string bytes) {
  {
    std::lock_guard lock(mutex_);
    if (!streaming_ || finished_ || disconnected_) return;
    chunks_.push_back({std::move(bytes), nullptr});
  }
  Wake();
}

void HttpExchange::Finish() {
  {
    std::lock_guard lock(mutex_);
    if (!streaming_ || finished_ || disconnected_) return;
    finished_ = true;
  }
  Wake();
}

void HttpExchange::SetKeepAlive(std::string bytes, std::chrono::milliseconds interval) {
  std::lock_guard lock(mutex_);
  keep_alive_ = std::move(bytes);
  keep_alive_interval_ = interval;
}

void HttpExchange::OnSilence(std::chrono::steady_clock::time_point when,
                             std::function<void()> callback) {
  {
    std::lock_guard lock(mutex_);
    if (sent_any_ || finished_ || disconnected_) return;
    silence_ = {when, std::move(callback)};
  }
  Wake();
}

void HttpExchange::EndSilence() {
  SilenceWatch watch;
  {
    std::lock_guard lock(mutex_);
    if (sent_any_ || finished_) return;
    watch = std::exchange(silence_, {});
  }
  if (watch.callback) watch.callback();
}

void HttpExchange::OnDisconnect(std::function<void()> callback) {
  {
    std::lock_guard lock(mutex_);
    if (!disconnected_) {
      on_disconnect_ = std::move(callback);
      return;
    }
  }
  callback();
}

bool HttpExchange::disconnected() const {
  std::lock_guard lock(mutex_);
  return disconnected_;
}

bool HttpExchange::finished() const {
  std::lock_guard lock(mutex_);
  return finished_;
}

HttpExchange::Output HttpExchange::Take() {
  std::lock_guard lock(mutex_);
  Output output;
  output.head = std::exchange(head_, std::nullopt);
  output.streaming = streaming_;
  output.finished = finished_;
  output.chunks.swap(chunks_);
  if (streaming_ && !sent_any_) {
    output.keep_alive = keep_alive_;
    output.keep_alive_interval = keep_alive_interval_;
    output.silent_until = silence_.when;
  }
  return output;
}

void HttpExchange::SetWake(std::function<void()> wake) {
  std::lock_guard lock(mutex_);
  wake_ = std::move(wake);
}

void HttpExchange::MarkDisconnected() {
  std::function<void()> callback;
  SilenceWatch watch;
  std::vector<Chunk> unsent;  // what its holds belong to is called when they die
  {
    std::lock_guard lock(mutex_);
    if (disconnected_) return;
    disconnected_ = true;
    wake_ = nullptr;
    unsent.swap(chunks_);
    watch = std::exchange(silence_, {});
    callback = std::exchange(on_disconnect_, nullptr);
  }
  if (callback) callback();
}

void HttpExchange::MarkDelivered() {
  // Destroyed after the lock is released: the callbacks may own what owns this exchange.
  SilenceWatch watch;
  std::function<void()> callback;
  std::lock_guard lock(mutex_);
  wake_ = nullptr;
  callback.swap(on_disconnect_);
  std::swap(watch, silence_);
}

void HttpExchange::Wake() {
  // Under the lock, so that no wake is running once the connection has withdrawn it.
  std::lock_guard lock(mutex_);
  if (wake_) wake_();
}

}  // namespace deepinfer
