// What the subcommands of `deepinfer kv` do, without their flags.
// Thread rule: main thread.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace deepinfer {

struct KvListOptions {
  bool blocks = false;
  std::string prefix_key;
  std::string retention;  // name of a class; empty for all
};

struct KvGcOptions {
  bool dry_run = false;
  int64_t space_mb = 0;
  double target_free_percent = 0;
};

struct KvEraseOptions {
  std::string tenant;
  std::string prefix_key;
  bool yes = false;
};

struct KvReplayOptions {
  std::string path;
  int64_t id_tokens = 512;
  int64_t block_tokens = 128;
  std::string svg_path;
  bool json = false;
};

// Read-only: also beside a running server, whose newest blocks may be missing.
Status PrintKvStats(const std::string& dir, bool json);
Status PrintKvList(const std::string& dir, const KvListOptions& options, bool json);

// clean is false when problems were found.
Status VerifyKvStore(const std::string& dir, int64_t sample, bool repair, bool json, bool* clean);

// Both become the owner of the store's local folders: unavailable while a server has it open.
Status CollectKvGarbage(const std::string& dir, const KvGcOptions& options, bool json);
Status EraseFromKvStore(const std::string& dir, const KvEraseOptions& options, bool json);

// Prints the hit rate for an unbounded cache and for shares of the unique blocks.
Status ReplayKvTrace(const KvReplayOptions& options);

}  // namespace deepinfer
