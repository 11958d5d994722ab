// The registry of a cluster: a few keys with leases, which tell who is there. It speaks the etcd v3
// interface, to etcd or to `deepinfer registry` (docs/cluster.md §7). Nothing that serves requests
// waits for it.
// Thread rule: any thread. Owner: the process that registers or looks.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace deepinfer {

struct RegistryEntry {
  std::string key;
  std::string value;
  int64_t mod_revision = 0;  // of its last change
  int64_t lease = 0;         // 0: none
};

struct RegistryList {
  std::vector<RegistryEntry> entries;  // by key
  int64_t revision = 0;                // as of which they are complete
};

struct RegistryEvent {
  bool deleted = false;
  RegistryEntry entry;  // of a deletion only key and revision
};

class RegistryWatch {
 public:
  virtual ~RegistryWatch() = default;  // as Stop
  // The next change or changes; nothing once the watch is over: the registry is gone, has forgotten
  // the revision, or Stop was called. Then list again and watch from there.
  virtual std::optional<std::vector<RegistryEvent>> Next() = 0;
  // Ends a Next that waits; any thread.
  virtual void Stop() = 0;
};

// Every call fails with `unavailable` when the registry does not answer within the limit.
class Registry {
 public:
  virtual ~Registry() = default;

  // lease 0: the entry stays until it is deleted. not_found: no such lease.
  virtual Status Put(const std::string& key, const std::string& value, int64_t lease) = 0;
  // Puts when the key was last changed by that revision, 0: when it does not exist. False when it
  // was not.
  virtual Result<bool> CompareAndPut(const std::string& key, int64_t mod_revision,
                                     const std::string& value, int64_t lease) = 0;
  virtual Result<std::optional<RegistryEntry>> Get(const std::string& key) = 0;
  virtual Result<RegistryList> List(const std::string& prefix) = 0;
  virtual Status Delete(const std::string& key) = 0;

  virtual Result<int64_t> GrantLease(std::chrono::seconds ttl) = 0;
  // What is left of it from now. not_found: it is over, and its entries with it.
  virtual Result<std::chrono::seconds> KeepAlive(int64_t lease) = 0;
  virtual Status RevokeLease(int64_t lease) = 0;

  // Changes of keys with the prefix after that revision.
  virtual Result<std::unique_ptr<RegistryWatch>> Watch(const std::string& prefix,
                                                       int64_t after_revision) = 0;
};

// At HOST:PORT or unix:PATH; connects when it is used.
std::unique_ptr<Registry> MakeRegistryClient(const std::string& endpoint,
                                             std::chrono::milliseconds limit);

}  // namespace deepinfer
