// What a persistent store is given at start, and how long each class of blocks is kept
// (kv_format.md §15).
// Thread rule: immutable values.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "kvcache/format.h"
#include "kvcache/tenant_quotas.h"
#include "kvcache/wall_clock.h"

namespace deepinfer {

struct RetentionPolicy {
  int64_t ttl_hours = 0;     // after the last touch; 0 never ends
  int64_t bucket_hours = 1;  // blocks whose deadlines lie in one bucket share segments

  // First hour of a bucket edge at or after the deadline; the largest hour for no deadline.
  uint64_t BucketOf(int64_t deadline_ns) const;
  int64_t DeadlineNs(int64_t touched_ns) const;
};

inline constexpr uint64_t kNoBucket = ~uint64_t{0};
inline constexpr int64_t kNoDeadlineNs = INT64_MAX;

// When the bucket is over. A file may say any hour: what lies behind the last one that can be told
// is that one.
inline int64_t BucketNs(uint64_t bucket_hour) {
  constexpr uint64_t kLastHour = INT64_MAX / kNsPerHour;
  return static_cast<int64_t>(std::min(bucket_hour, kLastHour)) * kNsPerHour;
}

struct KvStoreOptions {
  std::string dir;             // root of the store
  std::string node = "local";  // names this process's folders
  Sha256Digest namespace_id{};
  std::string namespace_text;  // ns.toml: the fields of the namespace for people
  KvBlockLayout layout;
  int64_t space_bytes = int64_t{10240} << 20;
  // Times the space may be written per day; 0: no limit. Rated endurance of a drive is 0.3 to 3.
  double writes_per_day = 0;
  TenantQuotas quotas;   // soft limits; writes are refused at 110 %
  std::string key_file;  // keys of tenants whose blocks are encrypted; empty: none
  int64_t write_queue_bytes = int64_t{256} << 20;
  int64_t group_commit_us = 1'000'000;
  int64_t group_commit_bytes = int64_t{64} << 20;
  int64_t seal_idle_us = int64_t{600} * 1'000'000;
  std::array<RetentionPolicy, kNumRetentionClasses> retention = {
      {{6, 1}, {72, 6}, {168, 12}, {0, 1}}};  // batch, agent, chat, pinned
  int32_t io_threads = 2;                     // 0: reads happen inside BeginLoad (tests, tools)
  int32_t io_depth = 64;                      // reads in flight with io_uring
  bool direct_io = true;                      // where the file system can
  bool io_uring = true;                       // where the kernel allows it
  // When another process holds the lock of this node: read what it stores and write nothing,
  // instead of failing. Not with shared.
  bool read_only_when_in_use = false;
  // Several processes, also on several hosts, share the root: each has its own node name, writes
  // below its own folder and reads everyone's (kv_format.md §21).
  bool shared = false;
  int64_t lease_renew_us = 10'000'000;
  int64_t lease_dead_us = 60'000'000;   // age of a lease from which its owner may be dead
  int64_t lease_watch_us = 30'000'000;  // for so long a peer must have seen it stand still
  int64_t peer_poll_us = 100'000;       // between looks at the logs of peers
  int64_t peer_scan_us = 2'000'000;     // between looks for new folders
  std::string boot_id;                  // of the running system; empty: asked of it
  // False: the caller runs RunWriter, RunPeers and RunJanitor (tests, tools, virtual time).
  bool background_threads = true;
  // Share of live records from which on a segment's file is kept and its bucket moved.
  double move_bucket_live_share = 0.7;
  double low_water_free_share = 0.05;
  double high_water_free_share = 0.10;
};

}  // namespace deepinfer
