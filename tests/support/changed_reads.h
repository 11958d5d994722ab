// A file system whose reads a test may change: bytes that are flipped on the way, files that seem
// to end early.
// Thread rule: one thread, the test's.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/file_system.h"

namespace deepinfer {

class ChangedReads final : public FileSystem {
 public:
  // A read of `path` from `offset` gave these bytes: it may change them, and gives their number.
  using Change =
      std::function<size_t(const std::string& path, int64_t offset, std::span<std::byte> bytes)>;

  explicit ChangedReads(FileSystem* under) : under_(under) {}
  void set_change(Change change) { change_ = std::move(change); }
  // Flips a bit of this byte of every file whose path ends so: in the next `times` reads of it.
  void FlipAt(std::string path_end, int64_t place, int times) {
    change_ = [path_end = std::move(path_end), place, times](
                  const std::string& path, int64_t offset, std::span<std::byte> bytes) mutable {
      const int64_t at = place - offset;
      if (times > 0 && path.ends_with(path_end) && at >= 0 &&
          at < static_cast<int64_t>(bytes.size())) {
        --times;
        bytes[static_cast<size_t>(at)] ^= std::byte{4};
      }
      return bytes.size();
    };
  }

  Result<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode, bool direct) override {
    DI_ASSIGN_OR_RETURN(auto file, under_->Open(path, mode, direct));
    return std::unique_ptr<File>(std::make_unique<ChangedFile>(this, path, std::move(file)));
  }
  Result<bool> MakeDirectory(const std::string& path) override {
    return under_->MakeDirectory(path);
  }
  Status Rename(const std::string& from, const std::string& to) override {
    return under_->Rename(from, to);
  }
  Status Remove(const std::string& path) override { return under_->Remove(path); }
  Status RemoveDirectory(const std::string& path) override { return under_->RemoveDirectory(path); }
  Result<std::vector<std::string>> List(const std::string& folder) override {
    return under_->List(folder);
  }
  Status SyncDirectory(const std::string& folder) override { return under_->SyncDirectory(folder); }
  Result<FileInfo> Stat(const std::string& path) override { return under_->Stat(path); }
  Result<std::unique_ptr<FileLock>> Lock(const std::string& path) override {
    return under_->Lock(path);
  }

 private:
  class ChangedFile final : public File {
   public:
    ChangedFile(ChangedReads* owner, std::string path, std::unique_ptr<File> under)
        : owner_(owner), path_(std::move(path)), under_(std::move(under)) {}
    Result<size_t> ReadAt(std::span<std::byte> into, int64_t offset) override {
      DI_ASSIGN_OR_RETURN(const size_t count, under_->ReadAt(into, offset));
      return owner_->change_ ? owner_->change_(path_, offset, into.first(count)) : count;
    }
    Status WriteAt(std::span<const std::byte> bytes, int64_t offset) override {
      return under_->WriteAt(bytes, offset);
    }
    Status SyncData() override { return under_->SyncData(); }
    Result<int64_t> Size() override { return under_->Size(); }
    Status Allocate(int64_t size_bytes) override { return under_->Allocate(size_bytes); }

   private:
    ChangedReads* owner_;
    std::string path_;
    std::unique_ptr<File> under_;
  };

  FileSystem* under_;
  Change change_;
};

}  // namespace deepinfer
