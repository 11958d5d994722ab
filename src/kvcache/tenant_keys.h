// Keys of the tenants whose blocks are stored encrypted, from the operator's key file; destroying a
// key erases everything that was written with it (kv_format.md §22).
//
// The file is text, readable by its owner only: a line "<tenant tag, 16 hex> <key, 64 hex>" per
// tenant, or "<tenant tag> destroyed". Empty lines and lines that begin with # are kept.
// Thread rule: any thread, one lock; Create and Destroy write the file under it. Owner: whoever
// opens the store.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "kvcache/file_system.h"

namespace deepinfer {

using TenantKey = std::array<uint8_t, 32>;

// How the blocks of a tenant are to be stored.
enum class TenantSecrecy : uint8_t {
  kPlain,      // not listed
  kEncrypted,  // has a key
  kDestroyed,  // had one: nothing is stored until the operator gives it another
};

class TenantKeys {
 public:
  // An empty path, or a file that is not there, lists nobody. data_corruption for a line of another
  // form, invalid_request when others may read the file.
  static Result<std::unique_ptr<TenantKeys>> Open(FileSystem* files, const std::string& path);

  // Takes over what the operator changed in the file; keys that cannot be read stay as they were.
  Status Reload();

  TenantSecrecy SecrecyOf(uint64_t tenant_tag) const;
  std::optional<TenantKey> Find(uint64_t tenant_tag) const;
  // A new random key for a tenant that has none; durable. invalid_request when it has one, or when
  // there is no key file.
  Status Create(uint64_t tenant_tag);
  // The key is gone, from memory and file, for good. False when the tenant had none.
  Result<bool> Destroy(uint64_t tenant_tag);

 private:
  TenantKeys(FileSystem* files, std::string path) : files_(files), path_(std::move(path)) {}
  Status Load();
  Status Write();

  FileSystem* files_;
  const std::string path_;
  mutable std::mutex mutex_;
  int64_t modified_ns_ = 0;  // of the file when it was read
  std::string comments_;
  std::map<uint64_t, std::optional<TenantKey>> keys_;  // none: destroyed
};

}  // namespace deepinfer
