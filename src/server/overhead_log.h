// Writes what the devices of this process do for no request into the ledger: once an hour and at
// the end (docs/economics.md section 3).
// Thread rule: a thread of its own. Owner: whoever owns the engines; ends before them and before
// the writer.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "economics/ledger_writer.h"
#include "economics/overhead_account.h"
#include "engine/statistics.h"

namespace deepinfer {

struct OverheadSource {
  std::function<std::vector<EngineStatistics>()> engines;  // one per device, in the same order
  // Device nanoseconds of health checks so far, on the first device; may be empty.
  std::function<int64_t()> probes_ns{};
};

class OverheadLog {
 public:
  // scope.process is made here. process_began_ns: of the monotonic clock. costs may be null.
  // Everything that is pointed to outlives this object.
  OverheadLog(OverheadScope scope, int64_t process_began_ns, OverheadSource source,
              const CostBook* costs, LedgerWriter* writer);
  // Nothing may run on the engines any more.
  ~OverheadLog();
  OverheadLog(const OverheadLog&) = delete;
  OverheadLog& operator=(const OverheadLog&) = delete;

 private:
  void Loop();
  void Cut(bool is_last);
  void Write(OverheadRecord record);

  const OverheadSource source_;
  const CostBook* const costs_;
  LedgerWriter* const writer_;
  std::vector<OverheadAccount> devices_;  // of the thread, then of the destructor
  std::mutex mutex_;
  std::condition_variable stop_changed_;
  bool stop_ = false;  // under mutex_
  std::thread thread_;
};

}  // namespace deepinfer
