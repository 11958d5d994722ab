#include "cluster/worker_directory.h"

#include <algorithm>
#include <fstream>
#include <random>
#include <set>
#include <utility>

#include <cluster.pb.h>
#include "base/log.h"
#include "cluster/handshake.h"

namespace deepinfer {

namespace {

constexpr std::chrono::milliseconds kLeastBackoff{200};
constexpr std::chrono::milliseconds kMostBackoff{2000};
constexpr std::chrono::milliseconds kFileLook{500};

// A thread that takes turns until it is stopped.
class Follower : public WorkerDirectory {
 public:
  explicit Follower(OnChange on_change) : on_change_(std::move(on_change)) {}

 protected:
  // Waits; true when it is time to end.
  bool Rest(std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, [this] { return stop_; });
  }
  void StopThread() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }
  void Tell(const std::set<std::string>& endpoints) {
    std::vector<std::string> now(endpoints.begin(), endpoints.end());
    if (std::exchange(told_, true) && now == last_) return;
    last_ = now;
    on_change_(now);
  }

  std::mutex mutex_;
  bool stop_ = false;
  std::thread thread_;

 private:
  const OnChange on_change_;
  std::condition_variable changed_;
  bool told_ = false;
  std::vector<std::string> last_;
};

class RegistryFollower final : public Follower {
 public:
  RegistryFollower(std::unique_ptr<Registry> registry, std::string prefix, OnChange on_change)
      : Follower(std::move(on_change)), registry_(std::move(registry)), prefix_(std::move(prefix)) {
    thread_ = std::thread([this] { Loop(); });
  }
  ~RegistryFollower() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
      if (watch_ != nullptr) watch_->Stop();
    }
    StopThread();
  }

 private:
  void Loop() {
    std::chrono::milliseconds backoff = kLeastBackoff;
    std::minstd_rand random{std::random_device{}()};
    bool told = false;  // of this outage
    while (true) {
      if (const Status status = Follow(); status.ok()) {
        backoff = kLeastBackoff;
        told = false;
      } else if (!std::exchange(told, true)) {
        Log(LogLevel::kWarning, "registry.unreachable", {{"prefix", prefix_}, {"status", status}});
      }
      const std::chrono::milliseconds wait(
          std::uniform_int_distribution<int64_t>(backoff.count() / 2, backoff.count())(random));
      if (Rest(wait)) return;
      backoff = std::min(backoff * 2, kMostBackoff);
    }
  }

  // Lists and watches until the watch is over.
  Status Follow() {
    DI_ASSIGN_OR_RETURN(const RegistryList list, registry_->List(prefix_));
    std::map<std::string, std::string> by_key;
    for (const RegistryEntry& entry : list.entries) {
      by_key[entry.key] = EndpointOfEntry(entry.value);
    }
    TellAll(by_key);
    DI_ASSIGN_OR_RETURN(std::unique_ptr<RegistryWatch> watch,
                        registry_->Watch(prefix_, list.revision));
    {
      const std::lock_guard lock(mutex_);
      if (stop_) return OkStatus();
      watch_ = std::move(watch);
    }
    while (const auto events = watch_->Next()) {
      for (const RegistryEvent& event : *events) {
        if (event.deleted) {
          by_key.erase(event.entry.key);
        } else {
          by_key[event.entry.key] = EndpointOfEntry(event.entry.value);
        }
      }
      TellAll(by_key);
    }
    const std::lock_guard lock(mutex_);
    watch_ = nullptr;
    return OkStatus();
  }

  void TellAll(const std::map<std::string, std::string>& by_key) {
    std::set<std::string> endpoints;
    for (const auto& [key, endpoint] : by_key) {
      if (!endpoint.empty()) endpoints.insert(endpoint);
    }
    Tell(endpoints);
  }

  const std::unique_ptr<Registry> registry_;
  const std::string prefix_;
  std::unique_ptr<RegistryWatch> watch_;  // set by the thread, under the lock
};

class FileFollower final : public Follower {
 public:
  FileFollower(std::filesystem::path path, OnChange on_change)
      : Follower(std::move(on_change)), path_(std::move(path)) {
    thread_ = std::thread([this] {
      do {
        Read();
      } while (!Rest(kFileLook));
    });
  }
  ~FileFollower() override { StopThread(); }

 private:
  void Read() {
    std::ifstream in(path_);
    if (!in) {
      if (!std::exchange(told_, true)) {
        Log(LogLevel::kWarning, "workers_file.unreadable", {{"path", path_.string()}});
      }
      return;
    }
    told_ = false;
    std::set<std::string> endpoints;
    for (std::string line; std::getline(in, line);) {
      line.erase(std::min(line.find('#'), line.size()));
      const size_t begin = line.find_first_not_of(" \t\r");
      if (begin == std::string::npos) continue;
      endpoints.insert(line.substr(begin, line.find_last_not_of(" \t\r") - begin + 1));
    }
    Tell(endpoints);
  }

  const std::filesystem::path path_;
  bool told_ = false;  // of this outage; owned by the thread
};

}  // namespace

std::unique_ptr<WorkerDirectory> WorkerDirectory::FollowRegistry(std::unique_ptr<Registry> registry,
                                                                 std::string prefix,
                                                                 OnChange on_change) {
  return std::make_unique<RegistryFollower>(std::move(registry), std::move(prefix),
                                            std::move(on_change));
}

std::unique_ptr<WorkerDirectory> WorkerDirectory::FollowFile(std::filesystem::path path,
                                                             OnChange on_change) {
  return std::make_unique<FileFollower>(std::move(path), std::move(on_change));
}

std::string EntryOfWorker(const WorkerInfo& info, const std::string& endpoint) {
  wire::Message message = MakeHello(info.incarnation, std::string(WorkerRoleName(info.role)), info);
  message.mutable_hello()->set_endpoint(endpoint);
  return message.hello().SerializeAsString();
}

std::string EndpointOfEntry(const std::string& value) {
  wire::Hello hello;
  return hello.ParseFromString(value) ? hello.endpoint() : std::string();
}

}  // namespace deepinfer
