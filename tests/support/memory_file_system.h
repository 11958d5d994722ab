// A file system in memory that fails on command and knows what a power cut would leave: bytes are
// durable only after a sync, page by page in any order; names only after a sync of their folder, in
// order.
// Thread rule: any thread, one lock; faults run outside of it and may block.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "kvcache/file_system.h"
#include "kvcache/layout.h"

namespace deepinfer {

class MemoryFileSystem final : public FileSystem {
 public:
  // Called before each operation with its name ("open", "read", "write", "sync", "rename", …) and
  // path; what it returns is the outcome unless it is ok.
  using Fault = std::function<Status(const std::string& operation, const std::string& path)>;
  void set_fault(Fault fault) {
    const std::lock_guard lock(mutex_);
    fault_ = std::move(fault);
  }

  Result<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode, bool) override {
    DI_RETURN_IF_ERROR(Try("open", path));
    const std::lock_guard lock(mutex_);
    const bool exists = names_.contains(path);
    const bool creates = mode != OpenMode::kRead && mode != OpenMode::kReadWrite;
    if (!exists && !creates) return NotFound(path);
    if (exists && (mode == OpenMode::kCreate || mode == OpenMode::kCreatePrivate)) {
      return Unavailable(path + " exists");
    }
    if (!exists && !folders_.contains(FolderOf(path))) return NotFound(path);
    if (!exists) {
      auto node = std::make_shared<Node>();
      node->inode = next_inode_++;
      node->modified_ns = now_ns_;
      if (mode == OpenMode::kCreatePrivate) node->permissions = 0600;
      ChangeName(path, std::move(node));
    }
    return std::unique_ptr<File>(std::make_unique<MemoryFile>(this, path, names_[path]));
  }

  Result<bool> MakeDirectory(const std::string& path) override {
    DI_RETURN_IF_ERROR(Try("mkdir", path));
    const std::lock_guard lock(mutex_);
    return folders_.try_emplace(path, next_inode_++).second;
  }

  Status Rename(const std::string& from, const std::string& to) override {
    DI_RETURN_IF_ERROR(Try("rename", from));
    const std::lock_guard lock(mutex_);
    if (folders_.contains(from)) return RenameFolder(from, to);
    if (!names_.contains(from)) return NotFound(from);
    const auto node = names_[from];
    ChangeName(to, node);
    ChangeName(from, nullptr);
    return OkStatus();
  }

  Status Remove(const std::string& path) override {
    DI_RETURN_IF_ERROR(Try("remove", path));
    const std::lock_guard lock(mutex_);
    if (!names_.contains(path)) return NotFound(path);
    ChangeName(path, nullptr);
    return OkStatus();
  }

  Status RemoveDirectory(const std::string& path) override {
    DI_RETURN_IF_ERROR(Try("rmdir", path));
    const std::lock_guard lock(mutex_);
    const auto is_inside = [&](const auto& item) { return FolderOf(item.first) == path; };
    if (std::ranges::any_of(names_, is_inside) || std::ranges::any_of(folders_, is_inside)) {
      return Unavailable(path + " is not empty");
    }
    return folders_.erase(path) > 0 ? OkStatus() : NotFound(path);
  }

  Result<std::vector<std::string>> List(const std::string& folder) override {
    DI_RETURN_IF_ERROR(Try("list", folder));
    const std::lock_guard lock(mutex_);
    if (!folders_.contains(folder)) return NotFound(folder);
    std::set<std::string> found;
    const auto add = [&](const std::string& path) {
      if (FolderOf(path) == folder) found.insert(path.substr(folder.size() + 1));
    };
    for (const auto& [path, node] : names_) add(path);
    for (const auto& [path, inode] : folders_) add(path);
    return std::vector<std::string>(found.begin(), found.end());
  }

  Status SyncDirectory(const std::string& folder) override {
    DI_RETURN_IF_ERROR(Try("syncdir", folder));
    const std::lock_guard lock(mutex_);
    std::erase_if(name_changes_, [&](const NameChange& change) {
      if (FolderOf(change.path) != folder) return false;
      Apply(change, &durable_names_);
      return true;
    });
    return OkStatus();
  }

  Result<FileInfo> Stat(const std::string& path) override {
    DI_RETURN_IF_ERROR(Try("stat", path));
    const std::lock_guard lock(mutex_);
    const auto it = names_.find(path);
    if (it == names_.end()) {
      if (const auto folder = folders_.find(path); folder != folders_.end()) {
        return FileInfo{0, 0, folder->second, 0755};
      }
      return NotFound(path);
    }
    return FileInfo{static_cast<int64_t>(it->second->bytes.size()), it->second->modified_ns,
                    it->second->inode, it->second->permissions};
  }

  Result<std::unique_ptr<FileLock>> Lock(const std::string& path) override {
    DI_RETURN_IF_ERROR(Try("lock", path));
    const std::lock_guard lock(mutex_);
    std::weak_ptr<int>& held = locks_[path];
    if (!held.expired()) return ResourceExhausted(path + " is held by another process");
    auto token = std::make_shared<int>();
    held = token;
    return std::unique_ptr<FileLock>(std::make_unique<HeldLock>(std::move(token)));
  }

  // As if every process that holds a lock were killed.
  void BreakLocks() {
    const std::lock_guard lock(mutex_);
    locks_.clear();
  }

  // The file system's own clock, of modification times.
  void AdvanceClock(int64_t ns) {
    const std::lock_guard lock(mutex_);
    now_ns_ += ns;
  }

  // What is on disk after the power went now: every unsynced page and name change either made it
  // or did not.
  std::unique_ptr<MemoryFileSystem> PowerCut(std::mt19937* random) const {
    const std::lock_guard lock(mutex_);
    auto image = std::make_unique<MemoryFileSystem>();
    image->folders_ = folders_;
    std::map<std::string, std::shared_ptr<Node>> names = durable_names_;
    const size_t kept = (*random)() % (name_changes_.size() + 1);
    for (size_t i = 0; i < kept; ++i) Apply(name_changes_[i], &names);
    std::map<const Node*, std::shared_ptr<Node>> copies;
    for (const auto& [path, node] : names) {
      // A folder is removed behind the last of its files: these cannot come back without it.
      if (!folders_.contains(FolderOf(path))) continue;
      auto& copy = copies[node.get()];
      if (copy == nullptr) copy = AfterPowerCut(*node, random);
      image->names_[path] = copy;
    }
    image->durable_names_ = image->names_;
    return image;
  }

  // A byte of a file, for damage. The file must be there and long enough.
  std::byte& At(const std::string& path, int64_t offset) {
    const std::lock_guard lock(mutex_);
    return names_.at(path)->bytes.at(static_cast<size_t>(offset));
  }
  std::vector<std::string> Paths() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> paths;
    for (const auto& [path, node] : names_) paths.push_back(path);
    return paths;
  }

 private:
  struct Node {
    std::vector<std::byte> bytes;    // as read
    std::vector<std::byte> durable;  // as after a power cut without luck
    std::set<size_t> dirty_pages;
    uint64_t inode = 0;
    int64_t modified_ns = 0;
    uint32_t permissions = 0644;
  };
  struct NameChange {
    std::string path;
    std::shared_ptr<Node> node;  // null: removed
  };

  class MemoryFile final : public File {
   public:
    MemoryFile(MemoryFileSystem* owner, std::string path, std::shared_ptr<Node> node)
        : owner_(owner), path_(std::move(path)), node_(std::move(node)) {}

    Result<size_t> ReadAt(std::span<std::byte> into, int64_t offset) override {
      DI_RETURN_IF_ERROR(owner_->Try("read", path_));
      const std::lock_guard lock(owner_->mutex_);
      const auto begin = static_cast<size_t>(offset);
      if (begin >= node_->bytes.size()) return size_t{0};
      const size_t count = std::min(into.size(), node_->bytes.size() - begin);
      std::copy_n(node_->bytes.begin() + offset, count, into.begin());
      return count;
    }
    Status WriteAt(std::span<const std::byte> bytes, int64_t offset) override {
      DI_RETURN_IF_ERROR(owner_->Try("write", path_));
      const std::lock_guard lock(owner_->mutex_);
      const size_t end = static_cast<size_t>(offset) + bytes.size();
      if (node_->bytes.size() < end) node_->bytes.resize(end);
      std::ranges::copy(bytes, node_->bytes.begin() + offset);
      node_->modified_ns = owner_->now_ns_;
      for (size_t page = static_cast<size_t>(offset) / kPageBytes; page * kPageBytes < end;
           ++page) {
        node_->dirty_pages.insert(page);
      }
      return OkStatus();
    }
    Status SyncData() override {
      DI_RETURN_IF_ERROR(owner_->Try("sync", path_));
      const std::lock_guard lock(owner_->mutex_);
      node_->durable = node_->bytes;
      node_->dirty_pages.clear();
      return OkStatus();
    }
    Result<int64_t> Size() override {
      const std::lock_guard lock(owner_->mutex_);
      return static_cast<int64_t>(node_->bytes.size());
    }
    Status Allocate(int64_t size_bytes) override {
      DI_RETURN_IF_ERROR(owner_->Try("allocate", path_));
      const std::lock_guard lock(owner_->mutex_);
      node_->bytes.resize(std::max(node_->bytes.size(), static_cast<size_t>(size_bytes)));
      return OkStatus();
    }

   private:
    MemoryFileSystem* owner_;
    std::string path_;
    std::shared_ptr<Node> node_;
  };

  struct HeldLock final : FileLock {
    explicit HeldLock(std::shared_ptr<int> t) : token(std::move(t)) {}
    std::shared_ptr<int> token;
  };

  static std::string FolderOf(const std::string& path) { return path.substr(0, path.rfind('/')); }

  Status Try(const std::string& operation, const std::string& path) const {
    Fault fault;
    {
      const std::lock_guard lock(mutex_);
      fault = fault_;
    }
    return fault ? fault(operation, path) : OkStatus();
  }

  void ChangeName(const std::string& path, std::shared_ptr<Node> node) {
    name_changes_.push_back({path, std::move(node)});
    Apply(name_changes_.back(), &names_);
  }
  static void Apply(const NameChange& change, std::map<std::string, std::shared_ptr<Node>>* names) {
    if (change.node == nullptr) {
      names->erase(change.path);
    } else {
      (*names)[change.path] = change.node;
    }
  }

  Status RenameFolder(const std::string& from, const std::string& to) {
    const uint64_t inode = folders_.at(from);
    folders_.erase(from);
    folders_[to] = inode;
    const auto renamed = [&](const std::string& path) {
      return FolderOf(path) == from ? to + path.substr(from.size()) : path;
    };
    for (auto* names : {&names_, &durable_names_}) {
      std::map<std::string, std::shared_ptr<Node>> moved;
      for (const auto& [path, node] : *names) moved[renamed(path)] = node;
      *names = std::move(moved);
    }
    for (NameChange& change : name_changes_) change.path = renamed(change.path);
    return OkStatus();
  }

  static std::shared_ptr<Node> AfterPowerCut(const Node& node, std::mt19937* random) {
    auto copy = std::make_shared<Node>();
    copy->durable = node.durable;
    // The size is on disk or not, like a page.
    if ((*random)() % 2 == 0) copy->durable.resize(node.bytes.size());
    for (const size_t page : node.dirty_pages) {
      if ((*random)() % 2 == 0) continue;
      const size_t begin = page * kPageBytes;
      const size_t end = std::min(node.bytes.size(), begin + kPageBytes);
      if (copy->durable.size() < end) copy->durable.resize(end);
      std::copy(node.bytes.begin() + static_cast<std::ptrdiff_t>(begin),
                node.bytes.begin() + static_cast<std::ptrdiff_t>(end),
                copy->durable.begin() + static_cast<std::ptrdiff_t>(begin));
    }
    copy->bytes = copy->durable;
    return copy;
  }

  mutable std::mutex mutex_;
  Fault fault_;
  std::map<std::string, std::shared_ptr<Node>> names_;
  std::map<std::string, std::shared_ptr<Node>> durable_names_;
  std::vector<NameChange> name_changes_;  // not synced, in order
  std::map<std::string, std::weak_ptr<int>> locks_;
  std::map<std::string, uint64_t> folders_;  // to inodes
  uint64_t next_inode_ = 1;
  int64_t now_ns_ = 0;
};

}  // namespace deepinfer
