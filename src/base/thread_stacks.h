// Where threads of this process are, for the log of one that hangs.
// Thread rule: any thread; one collection at a time, others wait for it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer {

struct ThreadStack {
  std::string name;
  pid_t thread_id = 0;
  // Return addresses, innermost first, behind those of the signal that asked. Empty where the
  // thread did not answer in time: it is inside the kernel, or no other stack could be told apart.
  std::vector<void*> frames;
};

// The stacks of all threads with one of these names (base/thread_name.h), the caller left out.
// Each is interrupted by a signal (SIGURG) and has so long to answer; system calls that a signal
// ends early are begun again by the kernel where it can.
std::vector<ThreadStack> CollectStacks(std::span<const std::string_view> names,
                                       std::chrono::milliseconds limit);

// "module(function+offset) [address]" of each frame. Names are there where the linker exported
// them; addr2line finds the others.
std::string DescribeFrames(std::span<void* const> frames);

}  // namespace deepinfer
