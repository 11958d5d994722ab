// The sign of life of a process that shares a store with others: a small file in its epoch folder,
// rewritten every few seconds (kv_format.md §21).
//
// Whether an owner still lives is judged by the file system's own clock, against a file written a
// moment ago, and by whether this process has seen the lease change: neither a wrong calendar nor a
// jump of the server's clock makes a living owner look dead.
// Thread rule: one thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "kvcache/file_system.h"
#include "kvcache/format.h"

namespace deepinfer {

inline constexpr uint64_t kLeaseMagic = MagicNumber("DIKVLSE1");

struct LeaseRecord {
  uint64_t magic = kLeaseMagic;
  uint16_t version = kFormatVersion;
  uint16_t zero = 0;
  uint32_t process_id = 0;
  uint64_t epoch = 0;
  uint64_t counter = 0;  // +1 per renewal
  uint64_t unix_ns = 0;  // of the owner's calendar, for people
  std::array<char, 64> node{};
  std::array<char, 64> boot_id{};  // of the running system: equal on one host until it restarts
  std::array<uint8_t, 340> reserved{};
  uint32_t crc = 0;  // of all bytes before it

  void Seal();
  bool IsIntact() const;
  std::string Boot() const;
};
static_assert(sizeof(LeaseRecord) == 512 && offsetof(LeaseRecord, node) == 40 &&
              offsetof(LeaseRecord, crc) == 508);

// A lease of this process, not sealed.
LeaseRecord NewLease(const std::string& node, const std::string& boot_id, uint64_t epoch);
// The identity of the running system; empty when it has none.
std::string SystemBootId();

// Rewrites <folder>/lease with the next counter. not_found when the folder is gone: it was adopted.
Status RenewLease(FileSystem* files, const std::string& folder, LeaseRecord* lease,
                  int64_t unix_ns);

// What is in <folder>/lease. A lease that cannot be read as one has no record but still an age.
struct LeaseSight {
  std::optional<LeaseRecord> record;
  int64_t modified_ns = 0;  // by the file system's clock
};
// not_found when there is no lease.
Result<LeaseSight> LookAtLease(FileSystem* files, const std::string& folder);

// The file system's time: that of a file written now in `folder`.
Result<int64_t> FileSystemNowNs(FileSystem* files, const std::string& folder);

// Remembers when each lease was last seen to change.
class LeaseWatch {
 public:
  // dead_us: age by the file system's clock from which an owner may be dead. watch_us: for so long
  // this process must have seen no change, by its own steady clock.
  LeaseWatch(int64_t dead_us, int64_t watch_us) : dead_us_(dead_us), watch_us_(watch_us) {}

  // Looks for changes; true when the lease stood still long enough to ask for its age.
  bool StandsStill(const std::string& owner, const LeaseSight& sight, int64_t now_us);
  bool IsTooOld(const LeaseSight& sight, int64_t file_system_ns) const;

 private:
  struct Seen {
    int64_t modified_ns = 0;
    uint64_t counter = 0;
    int64_t since_us = 0;
  };
  int64_t dead_us_;
  int64_t watch_us_;
  std::map<std::string, Seen> seen_;
};

}  // namespace deepinfer
