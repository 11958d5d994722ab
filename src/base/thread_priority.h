// Which thread of a process runs first where they all have real-time priority.
// Thread rule: for the calling thread.
#pragma once

#include <pthread.h>
#include <sched.h>

#include <algorithm>

namespace deepinfer {

// Real-time threads of one priority wait until another blocks, and those that compute hardly do.
// Lets the calling one, whose work is short and waited for, go before them. Without effect for
// threads of the plain class, which share their cores anyway, and where the system refuses.
inline void RunBeforeEqualThreads() {
  int policy = SCHED_OTHER;
  sched_param param{};
  if (pthread_getschedparam(pthread_self(), &policy, &param) != 0) return;
  if (policy != SCHED_FIFO && policy != SCHED_RR) return;
  param.sched_priority = std::min(param.sched_priority + 1, sched_get_priority_max(policy));
  (void)pthread_setschedparam(pthread_self(), policy, &param);
}

}  // namespace deepinfer
