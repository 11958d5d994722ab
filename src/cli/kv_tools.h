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
  std::string ns;         // first hex digits of a namespace; empty for all
  std::string owner;      // name of a node; empty for all
};

struct KvGcOptions {
  bool dry_run = false;
  std::string key_file;
  int64_t space_mb = 0;
  double target_free_percent = 0;
};

struct KvEraseOptions {
  std::string ns;
  std::string tenant;
  std::string prefix_key;
  std::string key_file;
  bool yes = false;
};

struct KvPinOptions {
  std::string prefix_key;
  std::string key_file;
  bool remove = false;
};

struct KvExportOptions {
  std::string ns;
  std::string prefix_key;
  std::string path;
};

struct KvImportOptions {
  std::string path;
  std::string key_file;
};

struct KvKeyOptions {
  std::string tenant;
  std::string key_file;
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
struct KvVerifyOptions {
  int64_t sample = 1;
  bool repair = false;
  std::string key_file;
};
Status VerifyKvStore(const std::string& dir, const KvVerifyOptions& options, bool json,
                     bool* clean);

// Both become the owner of the store's local folders: unavailable while a server has it open.
Status CollectKvGarbage(const std::string& dir, const KvGcOptions& options, bool json);
Status EraseFromKvStore(const std::string& dir, const KvEraseOptions& options, bool json);

// The chain up to a key, into the class that never expires or out of it.
Status PinInKvStore(const std::string& dir, const KvPinOptions& options, bool json);

// Records of a chain or namespace to a file and back; clean is false when some were bad.
Status ExportFromKvStore(const std::string& dir, const KvExportOptions& options, bool json,
                         bool* clean);
Status ImportIntoKvStore(const std::string& dir, const KvImportOptions& options, bool json,
                         bool* clean);

// Gives a tenant a key of its own.
Status CreateTenantKey(const std::string& dir, const KvKeyOptions& options, bool json);

// Prints the hit rate for an unbounded cache and for shares of the unique blocks.
Status ReplayKvTrace(const KvReplayOptions& options);

}  // namespace deepinfer
