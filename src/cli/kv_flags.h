// Flags of the persistent cache, and the store they open.
// Thread rule: main and loader thread.
#pragma once

#include <array>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "kvcache/kv_store.h"
#include "model/model.h"

namespace CLI {
class App;
}

namespace deepinfer {

// An open store with what it borrows. Without one (store == nullptr) the secret is of this process.
struct KvCache {
  std::unique_ptr<FileSystem> files;
  SystemWallClock wall_clock;
  std::array<uint8_t, 32> secret{};  // of scopes and tenant tags
  std::unique_ptr<KvStore> store;
  std::string weights_hash;   // in hexadecimal; empty: not known
  std::string replay_folder;  // of turns that outlive the process; empty: none do
};

// What a process without an engine takes of a cache folder, so that its scopes and turns are those
// of others with the folder.
struct KvIdentity {
  std::array<uint8_t, 32> secret{};
  std::string replay_folder;
};

// deepinfer/kv in the user's cache folder, where serve keeps its store by default; "none" for a
// user without one.
std::string UserKvDir();

// Of turns with tool calls, in a cache folder.
std::string ReplayFolderIn(const std::string& dir);

// The quotas of --kv-quota, "TENANT[:CLASS]=MIB" each with TENANT * for every tenant. Tags of named
// tenants come from the store's secret. invalid_request names the text and what is wrong with it.
Result<TenantQuotas> ParseQuotas(const std::vector<std::string>& texts,
                                 std::span<const uint8_t> secret);

struct KvFlags {
  // default_dir: used when --kv-dir is not given; "" stands for deepinfer/kv in the user's cache
  // folder, "none" for no store.
  void Register(CLI::App* command, const std::string& default_dir);

  // Opens the store for this model and says so in the log. A folder that was named must be usable;
  // the default one is done without, with a warning, when it is not (another server uses it, or
  // there is no place to write).
  Result<std::unique_ptr<KvCache>> Open(const Model& model, const std::filesystem::path& model_dir,
                                        const Clock* clock) const;

  // Of the folder that --kv-dir names; without one a secret of this process and no folder.
  Result<KvIdentity> Identity() const;

  // Retention class of requests that name no lifetime.
  RetentionClass default_class() const;
  // Hours that blocks of each class live after a use; 0 for ever.
  std::array<int64_t, kNumRetentionClasses> ttl_hours() const {
    return {ttl_batch_h_, ttl_agent_h_, ttl_chat_h_, 0};
  }

 private:
  Result<std::unique_ptr<KvCache>> OpenIn(const std::string& dir, const Model& model,
                                          const std::filesystem::path& model_dir,
                                          const Clock* clock) const;
  // Where turns outlive the process; empty where a tenant may have a key.
  std::string KeptTurnsIn(const std::string& dir) const;

  std::string dir_;
  std::string default_dir_ = "none";
  int64_t space_mb_ = 10240;
  int64_t tenant_quota_mb_ = 0;
  std::vector<std::string> quotas_;  // "TENANT[:CLASS]=MIB"
  std::string key_file_;
  double writes_per_day_ = 0;
  int64_t ttl_batch_h_ = 6, ttl_agent_h_ = 72, ttl_chat_h_ = 168;
  int64_t write_queue_mb_ = 256;
  int64_t group_commit_ms_ = 1000, group_commit_mb_ = 64;
  int32_t io_threads_ = 2, io_depth_ = 64;
  std::string direct_io_ = "auto";
  std::string class_default_ = "chat";
  bool shared_ = false;
  std::string when_in_use_ = "refuse";
  std::string node_;
};

}  // namespace deepinfer
