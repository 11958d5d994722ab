// What this process holds and gets: resident memory, memory left, CPU time and waits for a CPU.
// Thread rule: pure functions; reading looks at /proc once.
#pragma once

#include <cstdint>
#include <string_view>

namespace deepinfer {

struct ResidentMemory {
  int64_t anonymous_bytes = 0;  // heap, stacks, pools: what only this process has
  int64_t file_bytes = 0;       // mapped files, weights above all: shared with the page cache
  int64_t shared_bytes = 0;     // shared memory

  int64_t total_bytes() const { return anonymous_bytes + file_bytes + shared_bytes; }
};

// From the text of /proc/PID/status; what the text lacks stays 0.
ResidentMemory ParseResidentMemory(std::string_view status_text);

ResidentMemory ReadResidentMemory();

// Memory the system could still give to new work, from the text of /proc/meminfo; -1 where the text
// does not say.
int64_t ParseAvailableMemory(std::string_view meminfo_text);
int64_t ReadAvailableMemory();

// Sums over the threads of the process, since their start.
struct CpuTimes {
  int64_t running_ns = 0;
  int64_t waiting_ns = 0;  // ready to run, while something else had the CPU
};

// CPU time of the calling thread since its start.
int64_t ThreadCpuNs();

// Of this process; zeros where the kernel does not count.
CpuTimes ReadCpuTimes();

}  // namespace deepinfer
