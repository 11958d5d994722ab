#include "base/thread_priority.h"

#include <gtest/gtest.h>

#include <thread>

namespace deepinfer {
namespace {

struct Scheduling {
  int policy = -1;
  int priority = -1;
};

Scheduling Current() {
  Scheduling s;
  sched_param param{};
  if (pthread_getschedparam(pthread_self(), &s.policy, &param) == 0) {
    s.priority = param.sched_priority;
  }
  return s;
}

// What a thread of this class and priority has after the call; policy -1: the system refused both.
Scheduling AfterCall(int policy, int priority) {
  Scheduling s;
  std::thread([&] {
    sched_param param{};
    param.sched_priority = priority;
    if (pthread_setschedparam(pthread_self(), policy, &param) != 0) return;
    RunBeforeEqualThreads();
    s = Current();
  }).join();
  return s;
}

TEST(RunBeforeEqualThreads, LeavesThreadsOfThePlainClassAlone) {
  const Scheduling s = AfterCall(SCHED_OTHER, 0);
  if (s.policy == -1) GTEST_SKIP() << "this process may not leave its real-time class";
  EXPECT_EQ(s.policy, SCHED_OTHER);
  EXPECT_EQ(s.priority, 0);
}

TEST(RunBeforeEqualThreads, GoesOneAboveRealTimeThreads) {
  const Scheduling s = AfterCall(SCHED_FIFO, 1);
  if (s.policy == -1) GTEST_SKIP() << "this process may not use real-time priority";
  EXPECT_EQ(s.policy, SCHED_FIFO);
  EXPECT_EQ(s.priority, 2);
  const int most = sched_get_priority_max(SCHED_RR);
  EXPECT_EQ(AfterCall(SCHED_RR, most).priority, most);
}

}  // namespace
}  // namespace deepinfer
