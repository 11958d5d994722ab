// Names of threads in debuggers, `top -H` and /proc; those of architecture.md §4.
// Thread rule: names the calling thread.
#pragma once

#include <pthread.h>

namespace deepinfer {

// Longest name, without its end.
inline constexpr int kMaxThreadName = 15;

// At most kMaxThreadName characters; without effect where the system refuses.
inline void NameThread(const char* name) { (void)pthread_setname_np(pthread_self(), name); }

}  // namespace deepinfer
