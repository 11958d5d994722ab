// Stands between two processes of a cluster and passes their messages on in a wrong way: twice, or
// in another order. Greetings pass as they are. A stream of TCP does neither; what is built on it
// must still not depend on that (a message may be sent again after a loss).
// Thread rule: one owner; a session has two threads of its own.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include <cluster.pb.h>
#include "cluster/session.h"

namespace deepinfer {

class MessageRelay {
 public:
  struct Faults {
    double twice = 0;    // share of messages that go twice, the second time later
    int most_delay = 0;  // milliseconds; every message waits for some of it on its own
    uint32_t seed = 1;
  };

  MessageRelay(const std::string& endpoint, std::string target, const Faults& faults)
      : target_(std::move(target)), faults_(faults) {
    auto server = SessionServer::Listen(endpoint, [this](Session* session) { Serve(session); });
    EXPECT_TRUE(server.ok()) << server.status().ToString();
    server_ = *std::move(server);
  }
  ~MessageRelay() { server_->Shutdown(); }

 private:
  using Clock = std::chrono::steady_clock;

  // Messages on their way to one side, by the time of their arrival.
  class Line {
   public:
    Line(Session* to, const Faults& faults, uint32_t number)
        : to_(to),
          faults_(faults),
          random_(faults.seed * 31 + number),
          thread_([this] { Pump(); }) {}
    ~Line() {
      {
        const std::lock_guard lock(mutex_);
        stop_ = true;
      }
      changed_.notify_all();
      thread_.join();
    }
    void Add(wire::Message message) {
      if (message.has_hello()) return to_->Send(std::move(message));
      const std::lock_guard lock(mutex_);
      const bool twice = std::uniform_real_distribution<>(0, 1)(random_) < faults_.twice;
      for (int i = 0; i < (twice ? 2 : 1); ++i) {
        const int most = faults_.most_delay + i;
        const int delay = std::uniform_int_distribution<>(0, most)(random_);
        waiting_.emplace(Clock::now() + std::chrono::milliseconds(delay), message);
      }
      changed_.notify_all();
    }

   private:
    void Pump() {
      std::unique_lock lock(mutex_);
      while (!stop_) {
        if (waiting_.empty()) {
          changed_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
          continue;
        }
        const auto first = waiting_.begin()->first;
        if (Clock::now() < first) {
          changed_.wait_until(lock, first);
          continue;
        }
        wire::Message message = std::move(waiting_.begin()->second);
        waiting_.erase(waiting_.begin());
        lock.unlock();
        to_->Send(std::move(message));
        lock.lock();
      }
    }

    Session* const to_;
    const Faults faults_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::mt19937 random_;  // under mutex_, as all below
    std::multimap<Clock::time_point, wire::Message> waiting_;
    bool stop_ = false;
    std::thread thread_;
  };

  void Serve(Session* from) {
    auto dialled = DialSession(target_, std::chrono::milliseconds(2000));
    if (!dialled.ok()) return;
    Session* const to = dialled->get();
    const uint32_t number = 2 * num_sessions_++;
    Line there(to, faults_, number), back(from, faults_, number + 1);
    std::thread answers([&] {
      wire::Message message;
      while (to->Receive(&message)) back.Add(message);
      from->Close();
    });
    wire::Message message;
    while (from->Receive(&message)) there.Add(message);
    to->Close();
    answers.join();
  }

  const std::string target_;
  const Faults faults_;
  std::atomic<uint32_t> num_sessions_{0};
  std::unique_ptr<SessionServer> server_;
};

}  // namespace deepinfer
