// The keys of the dev registry: revisions, leases and watches as etcd has them, in memory. What
// ends with the process is written again by whoever registers. Thread rule: any thread. Owner:
// RegistryServer.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cluster/registry.h"

namespace deepinfer {

// Keys in [begin, end); an empty end: only `begin`; "\0": all from begin on.
struct KeyRange {
  std::string begin;
  std::string end;

  bool Contains(const std::string& key) const;
};

struct StoredKey {
  std::string value;
  int64_t create_revision = 0;
  int64_t mod_revision = 0;
  int64_t version = 0;
  int64_t lease = 0;
};

class KeyStore {
 public:
  explicit KeyStore(const Clock* clock) : clock_(clock) {}

  // A batch that sees one state and makes one revision.
  class Batch {
   public:
    explicit Batch(KeyStore* store) : store_(store), lock_(store->mutex_) { store->Expire(); }
    ~Batch() { store_->changed_.notify_all(); }

    int64_t revision() const { return store_->revision_; }
    std::vector<std::pair<std::string, StoredKey>> Range(const KeyRange& range) const;
    // False when the lease does not exist.
    bool Put(const std::string& key, const std::string& value, int64_t lease);
    int64_t Delete(const KeyRange& range);

   private:
    void Count();

    KeyStore* const store_;
    std::unique_lock<std::mutex> lock_;
    bool counted_ = false;
  };

  // id 0: chosen here. Nothing when the id is taken.
  std::optional<int64_t> GrantLease(int64_t ttl_s, int64_t id);
  // The whole time of the lease, which begins again; 0 when it is over.
  int64_t KeepAlive(int64_t id);
  bool RevokeLease(int64_t id);

  // Changes in the range from revision `from` on, at least one; waits at most so long. Nothing when
  // `from` is older than what is remembered.
  struct Changes {
    std::vector<RegistryEvent> events;
    int64_t revision = 0;  // up to which they are complete
  };
  std::optional<Changes> Wait(const KeyRange& range, int64_t from, std::chrono::milliseconds limit);
  // Deletes what has a lease that is over; also done by every use.
  void Sweep();

 private:
  struct Lease {
    int64_t ttl_us = 0;
    int64_t until_us = 0;
    std::set<std::string> keys;
  };

  // All under the lock.
  void Expire();
  void EndLease(int64_t id);
  void Erase(const std::string& key);
  void Note(RegistryEvent event);

  const Clock* const clock_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t revision_ = 1;
  std::map<std::string, StoredKey> keys_;
  std::map<int64_t, Lease> leases_;
  std::deque<RegistryEvent> history_;
  int64_t forgotten_ = 1;  // changes up to this revision
};

}  // namespace deepinfer
