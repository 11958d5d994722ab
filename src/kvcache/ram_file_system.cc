#include "kvcache/ram_file_system.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "kvcache/layout.h"

namespace deepinfer {
namespace {

constexpr auto kPage = static_cast<size_t>(kPageBytes);

struct Node {
  std::unordered_map<size_t, std::vector<std::byte>> pages;
  int64_t size_bytes = 0;
  uint64_t inode = 0;
  uint32_t permissions = 0644;
};

// Calls visit(page, offset in the page, offset in the range, length) for each page of a range.
template <typename Visit>
void ForEachPage(int64_t offset, size_t length, Visit visit) {
  for (size_t done = 0; done < length;) {
    const size_t at = static_cast<size_t>(offset) + done;
    const size_t count = std::min(length - done, kPage - at % kPage);
    visit(at / kPage, at % kPage, done, count);
    done += count;
  }
}

class RamFile final : public File {
 public:
  explicit RamFile(std::shared_ptr<Node> node) : node_(std::move(node)) {}

  Result<size_t> ReadAt(std::span<std::byte> into, int64_t offset) override {
    if (offset >= node_->size_bytes) return size_t{0};
    const size_t length = std::min(into.size(), static_cast<size_t>(node_->size_bytes - offset));
    std::ranges::fill(into.first(length), std::byte{0});
    ForEachPage(offset, length, [&](size_t page, size_t in_page, size_t done, size_t count) {
      const auto it = node_->pages.find(page);
      if (it == node_->pages.end() || it->second.size() <= in_page) return;
      const auto from = it->second.begin() + static_cast<std::ptrdiff_t>(in_page);
      std::copy_n(from, std::min(count, it->second.size() - in_page),
                  into.begin() + static_cast<std::ptrdiff_t>(done));
    });
    return length;
  }

  Status WriteAt(std::span<const std::byte> bytes, int64_t offset) override {
    ForEachPage(offset, bytes.size(), [&](size_t page, size_t in_page, size_t done, size_t count) {
      std::vector<std::byte>& kept = node_->pages[page];
      if (kept.size() < in_page + count) kept.resize(in_page + count);
      std::ranges::copy(bytes.subspan(done, count),
                        kept.begin() + static_cast<std::ptrdiff_t>(in_page));
      while (!kept.empty() && kept.back() == std::byte{0}) kept.pop_back();
      if (kept.capacity() > 2 * kept.size()) kept.shrink_to_fit();
    });
    node_->size_bytes = std::max(node_->size_bytes, offset + static_cast<int64_t>(bytes.size()));
    return OkStatus();
  }

  Status SyncData() override { return OkStatus(); }
  Result<int64_t> Size() override { return node_->size_bytes; }
  Status Allocate(int64_t size_bytes) override {
    node_->size_bytes = std::max(node_->size_bytes, size_bytes);
    return OkStatus();
  }

 private:
  std::shared_ptr<Node> node_;
};

class RamLock final : public FileLock {};

class RamFileSystem final : public FileSystem {
 public:
  Result<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode, bool) override {
    const bool creates = mode != OpenMode::kRead && mode != OpenMode::kReadWrite;
    auto it = files_.find(path);
    if (it == files_.end() && (!creates || !folders_.contains(FolderOf(path)))) {
      return NotFound(path);
    }
    if (it != files_.end() && (mode == OpenMode::kCreate || mode == OpenMode::kCreatePrivate)) {
      return Unavailable(path + " exists");
    }
    if (it == files_.end()) {
      it = files_.emplace(path, std::make_shared<Node>()).first;
      it->second->inode = next_inode_++;
      if (mode == OpenMode::kCreatePrivate) it->second->permissions = 0600;
    }
    return std::unique_ptr<File>(std::make_unique<RamFile>(it->second));
  }
  Result<bool> MakeDirectory(const std::string& path) override {
    return folders_.try_emplace(path, next_inode_++).second;
  }
  Status Rename(const std::string& from, const std::string& to) override {
    const auto it = files_.find(from);
    if (it == files_.end()) return NotFound(from);
    auto node = std::move(it->second);
    files_.erase(it);
    files_[to] = std::move(node);
    return OkStatus();
  }
  Status Remove(const std::string& path) override {
    return files_.erase(path) > 0 ? OkStatus() : NotFound(path);
  }
  Status RemoveDirectory(const std::string& path) override {
    if (const auto names = List(path); names.ok() && !names->empty()) {
      return Unavailable(path + " is not empty");
    }
    return folders_.erase(path) > 0 ? OkStatus() : NotFound(path);
  }
  Result<std::vector<std::string>> List(const std::string& folder) override {
    if (!folders_.contains(folder)) return NotFound(folder);
    std::vector<std::string> names;
    const auto add = [&](const std::string& path) {
      if (FolderOf(path) == folder) names.push_back(path.substr(folder.size() + 1));
    };
    for (const auto& [path, node] : files_) add(path);
    for (const auto& [path, inode] : folders_) add(path);
    std::ranges::sort(names);
    return names;
  }
  Status SyncDirectory(const std::string&) override { return OkStatus(); }
  Result<FileInfo> Stat(const std::string& path) override {
    if (const auto it = files_.find(path); it != files_.end()) {
      return FileInfo{it->second->size_bytes, 0, it->second->inode, it->second->permissions};
    }
    if (const auto it = folders_.find(path); it != folders_.end()) {
      return FileInfo{0, 0, it->second, 0755};
    }
    return NotFound(path);
  }
  Result<std::unique_ptr<FileLock>> Lock(const std::string&) override {
    return std::unique_ptr<FileLock>(std::make_unique<RamLock>());
  }

 private:
  static std::string FolderOf(const std::string& path) { return path.substr(0, path.rfind('/')); }

  std::map<std::string, std::shared_ptr<Node>> files_;
  std::map<std::string, uint64_t> folders_;  // to inodes
  uint64_t next_inode_ = 1;
};

}  // namespace

std::unique_ptr<FileSystem> MakeRamFileSystem() { return std::make_unique<RamFileSystem>(); }

}  // namespace deepinfer
