#include "base/isolated_runner.h"

#include <gtest/gtest.h>

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"

namespace deepinfer {
namespace {

[[gnu::noinline]] int Recurse(int depth) {
  volatile char frame[4096];
  frame[depth & 7] = static_cast<char>(depth);
  return depth < 0 ? 0 : Recurse(depth + 1) + frame[depth & 7];
}

// What a hostile input can do to the code that reads it.
std::string Misbehave(std::string_view request) {
  if (request == "spin") {
    volatile bool forever = true;
    while (forever) {
    }
  }
  if (request == "memory") {
    std::vector<std::string> kept;
    while (true) kept.emplace_back(1 << 20, 'x');
  }
  if (request == "overflow") return std::to_string(Recurse(0));
  if (request == "abort") std::abort();
  if (request == "throw") throw std::runtime_error("no good");
  if (request == "large") return std::string(5 << 20, 'x');
  if (request == "pid") return std::to_string(getpid());
  return "echo " + std::string(request);
}

// The default is a time that no answer of Misbehave takes on a busy machine.
std::unique_ptr<IsolatedRunner> StartRunner(int64_t time_us = 60'000'000) {
  IsolationLimits limits;
  limits.time_us = time_us;
  limits.memory_bytes = 128 << 20;
  limits.max_reply_bytes = 4 << 20;
  auto runner = IsolatedRunner::Start(Misbehave, limits);
  EXPECT_TRUE(runner.ok()) << runner.status().ToString();
  return *std::move(runner);
}

TEST(IsolatedRunner, AnswersRequestsOfAnySize) {
  auto runner = StartRunner();
  for (const size_t size : {size_t{0}, size_t{1}, size_t{100'000}, size_t{3'000'000}}) {
    const std::string request(size, 'r');
    auto answer = runner->Run(request);
    ASSERT_TRUE(answer.ok()) << answer.status().ToString();
    EXPECT_EQ(*answer, "echo " + request);
  }
}

TEST(IsolatedRunner, MisbehaviourEndsOneRunOnly) {
  auto runner = StartRunner();
  const pid_t host = runner->host_pid();
  const std::pair<const char*, StatusCode> cases[] = {
    {"throw", StatusCode::kInternal},
    {"abort", StatusCode::kInternal},
    {"large", StatusCode::kResourceExhausted},
// Sanitizers report these by ending the process in a way of their own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    {"memory", StatusCode::kResourceExhausted},
    {"overflow", StatusCode::kInternal},
#endif
  };
  for (const auto& [request, code] : cases) {
    auto answer = runner->Run(request);
    EXPECT_EQ(answer.status().code(), code) << request << ": " << answer.status().ToString();
    auto next = runner->Run("x");
    ASSERT_TRUE(next.ok()) << "after " << request << ": " << next.status().ToString();
    EXPECT_EQ(*next, "echo x");
  }
  EXPECT_EQ(runner->host_pid(), host);
}

TEST(IsolatedRunner, EndsARunAtItsDeadline) {
  auto runner = StartRunner(200'000);
  const pid_t host = runner->host_pid();
  EXPECT_EQ(runner->Run("spin").status().code(), StatusCode::kDeadline);
  EXPECT_EQ(runner->Run("spin").status().code(), StatusCode::kDeadline);
  EXPECT_EQ(runner->host_pid(), host);
}

TEST(IsolatedRunner, KeepsTheTextOfExceptions) {
  auto runner = StartRunner();
  EXPECT_EQ(runner->Run("throw").status().message(), "no good");
}

TEST(IsolatedRunner, EveryRunIsAProcessOfItsOwn) {
  auto runner = StartRunner();
  const auto first = runner->Run("pid");
  const auto second = runner->Run("pid");
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE(*first, *second);
  EXPECT_NE(*first, std::to_string(getpid()));
}

TEST(IsolatedRunner, StartsAnotherHostWhenItsOwnWasKilled) {
  auto runner = StartRunner();
  const pid_t host = runner->host_pid();
  ASSERT_EQ(kill(host, SIGKILL), 0);
  EXPECT_EQ(runner->Run("x").status().code(), StatusCode::kUnavailable);
  auto answer = runner->Run("x");
  ASSERT_TRUE(answer.ok()) << answer.status().ToString();
  EXPECT_NE(runner->host_pid(), host);
}

TEST(IsolatedRunner, LeavesNoProcessBehind) {
  pid_t host = -1;
  {
    auto runner = StartRunner();
    host = runner->host_pid();
    ASSERT_EQ(kill(host, 0), 0);
  }
  EXPECT_EQ(kill(host, 0), -1);
}

TEST(IsolatedRunner, RunnersOfSeveralThreadsAreIndependent) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([i] {
      auto runner = StartRunner();
      EXPECT_EQ(runner->Run(i % 2 == 0 ? "abort" : "x").ok(), i % 2 == 1);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace deepinfer
