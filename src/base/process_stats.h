// Resident memory of this process.
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

}  // namespace deepinfer
