// Where transfers of other processes land, and who owns that memory (docs/cluster.md §6):
//
//   FREE -> GRANTED -> FILLING -> VERIFIED -> the taker -> FREE
//           GRANTED or FILLING -> QUIESCING -> FREE
//
// A landing that is revoked while somebody writes to it is freed by the last writer. Every landing
// has a lease, which each stored extent renews, and the word that its prompt still runs. Nothing
// that a peer says can make a landing or end the process; what is kept of the extents of one is
// bounded by the units of its regions.
// Thread rule: any thread. Owner: HandOffReceiver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "transfer/extent.h"
#include "transfer/shared_window.h"

namespace deepinfer {

struct LandingOptions {
  int64_t max_bytes = int64_t{1} << 30;  // of all landings together
  // Bytes of a transfer that may be on the way; a multiple of kExtentBytes. Sixteen extents keep a
  // copying pair busy while acknowledgements travel.
  int64_t window_bytes = 16 * kExtentBytes;
  int64_t lease_us = 10'000'000;
  // Called by a writer before its bytes come; empty but in tests of faults.
  std::function<void()> before_fill = nullptr;
};

struct LandingGrant {
  uint64_t ticket = 0;
  std::string shared_window;  // where the bytes may be put; empty: none
};

struct LandingCounters {
  int64_t granted = 0;
  int64_t released = 0;  // landings whose memory is free or the taker's
  int64_t bytes_held = 0;
  int64_t bytes_stored = 0;
  int64_t extents_nacked = 0;
};

enum class ExtentOutcome : unsigned char {
  kStored,
  kCorrupt,  // its bytes are not what its CRC says; it may come once more
  kRefused,  // there is no such landing any more, or the extent is nonsense
};

// What the sender says at the end.
struct Manifest {
  int64_t size_bytes = 0;
  int32_t num_extents = 0;
  uint32_t crc_of_crcs = 0;
};

class LandingTable {
 public:
  // Fills the span; an error leaves the extent out.
  using Source = std::function<Status(std::span<std::byte>)>;

  LandingTable(const LandingOptions& options, const Clock* clock)
      : options_(options), clock_(clock) {}

  const LandingOptions& options() const { return options_; }

  // Regions in the order of their offsets; none: nothing but the end is to come. early: the last
  // bytes are long to come, so that half of the memory is left to others. invalid_request: sizes
  // that cannot be; resource_exhausted: no room for them now.
  Result<LandingGrant> Grant(std::span<const TransferRegion> regions, bool shares_memory,
                             bool early = false);

  // The bytes of the extent lie in its slot of the shared window.
  ExtentOutcome OnShared(const Extent& extent);
  // The bytes come from `source`. A revocation meanwhile calls `interrupt`, on any thread.
  ExtentOutcome OnStream(const Extent& extent, const Source& source,
                         const std::function<void()>& interrupt);

  // Hands the bytes over when they are all there and are those of the manifest. data_corruption:
  // they are not, and the landing is revoked; not_found: no such landing.
  Result<std::vector<std::byte>> Take(uint64_t ticket, const Manifest& manifest);

  // The lease begins anew. Unknown tickets are fine.
  void Renew(uint64_t ticket);

  // Idempotent; unknown tickets are fine.
  void Revoke(uint64_t ticket);

  // Revokes what has a lease that is over and returns its tickets.
  std::vector<uint64_t> Sweep();

  LandingCounters counters() const;

 private:
  struct Stored {
    int64_t size_bytes = 0;
    uint32_t crc32c = 0;
    bool whole = false;  // false: being written
  };
  struct Landing {
    std::vector<TransferRegion> regions;
    std::vector<std::byte> bytes;
    SharedWindow window;
    std::map<int64_t, Stored> extents;  // by offset, without overlap
    std::set<int64_t> nacked;
    int64_t lease_until_us = 0;
    int32_t writers = 0;
    std::vector<const std::function<void()>*> interrupts;  // of writers
    bool revoked = false;
  };
  using LandingPtr = std::shared_ptr<Landing>;

  ExtentOutcome Store(const Extent& extent, const std::function<Status(Landing&)>& fill,
                      const std::function<void()>* interrupt);
  // Null when the extent cannot be written; else it is noted as being written.
  LandingPtr Begin(const Extent& extent, const std::function<void()>* interrupt);
  ExtentOutcome End(const LandingPtr& landing, const Extent& extent, bool filled, uint32_t crc);
  void RevokeLocked(uint64_t ticket);
  void Free(uint64_t ticket);

  const LandingOptions options_;
  const Clock* const clock_;
  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, LandingPtr> landings_;
  LandingCounters counters_;
};

}  // namespace deepinfer
