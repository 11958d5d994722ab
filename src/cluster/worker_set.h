// The workers of a gateway, which may come and go. Readers take a list that never changes; a worker
// that left is destroyed by the sweep once no request refers to it.
// Thread rule: any thread; Sweep by one. Owner: Gateway.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cluster/worker.h"

namespace deepinfer {

class WorkerSet {
 public:
  using List = std::vector<std::shared_ptr<Worker>>;
  using Make = std::function<std::unique_ptr<Worker>(const std::string& endpoint)>;

  explicit WorkerSet(std::vector<std::unique_ptr<Worker>> workers);

  std::shared_ptr<const List> list() const;

  // Makes workers for endpoints that are new. One that is not named any more stays for as long as
  // it can be reached: a registry that forgets is no reason to lose it. Workers of the start that
  // have no endpoint stay for ever.
  void Follow(const std::vector<std::string>& endpoints, const Make& make);

  // House-keeping of all workers, and the end of those that left.
  void Sweep(int64_t now_us);

  // Before the end: destroys all of them.
  void Clear();

 private:
  struct Member {
    std::string endpoint;
    std::shared_ptr<Worker> worker;
    bool named = true;
  };

  void Publish();  // under the lock

  mutable std::mutex mutex_;
  std::vector<Member> members_;
  std::shared_ptr<const List> list_;
  std::vector<std::shared_ptr<Worker>> left_;
};

}  // namespace deepinfer
