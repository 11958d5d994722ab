// A file system that lies and fails by the dice: errors, a full disk, short transfers, flipped,
// lost and misplaced bytes, operations that take minutes. Counts what it did, and the handles that
// are held.
// Thread rule: one thread, the test's.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/file_system.h"
#include "support/fake_clock.h"

namespace deepinfer {

enum class FaultKind : uint8_t {
  kError,          // EIO: nothing happened
  kFull,           // ENOSPC
  kShortRead,      // the file seems to end early
  kTornWrite,      // a part was written, then an error
  kFlippedRead,    // a byte of what is read, this time
  kFlippedWrite,   // a byte of what is written, for good
  kLostWrite,      // reported as done
  kMisplacedRead,  // bytes of another page
  kStall,          // the operation takes up to two minutes
  kDoneButFailed,  // it happened, but an error is reported
};
inline constexpr size_t kNumFaultKinds = 10;

class FaultFileSystem final : public FileSystem {
 public:
  // Both are borrowed. per_mille: of all operations that fail in some way.
  FaultFileSystem(FileSystem* under, FakeClock* clock, uint32_t seed)
      : under_(under), clock_(clock), dice_(seed) {}

  void set_per_mille(uint32_t per_mille) { per_mille_ = per_mille; }
  void set_under(FileSystem* under) { under_ = under; }
  int64_t num_faults() const {
    int64_t sum = 0;
    for (const int64_t count : counts_) sum += count;
    return sum;
  }
  const std::array<int64_t, kNumFaultKinds>& counts() const { return counts_; }
  // Files and locks that exist now.
  int64_t num_handles() const { return *handles_; }

  Result<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode, bool direct) override {
    DI_RETURN_IF_ERROR(Before(mode == OpenMode::kRead ? kErrors : kChanges));
    DI_ASSIGN_OR_RETURN(auto file, under_->Open(path, mode, direct));
    return std::unique_ptr<File>(std::make_unique<FaultFile>(this, std::move(file)));
  }
  Result<bool> MakeDirectory(const std::string& path) override {
    DI_RETURN_IF_ERROR(Before(kChanges));
    return under_->MakeDirectory(path);
  }
  Status Rename(const std::string& from, const std::string& to) override {
    return Change([&] { return under_->Rename(from, to); });
  }
  Status Remove(const std::string& path) override {
    return Change([&] { return under_->Remove(path); });
  }
  Status RemoveDirectory(const std::string& path) override {
    return Change([&] { return under_->RemoveDirectory(path); });
  }
  Result<std::vector<std::string>> List(const std::string& folder) override {
    DI_RETURN_IF_ERROR(Before(kErrors));
    return under_->List(folder);
  }
  Status SyncDirectory(const std::string& folder) override {
    return Change([&] { return under_->SyncDirectory(folder); });
  }
  Result<FileInfo> Stat(const std::string& path) override {
    DI_RETURN_IF_ERROR(Before(kErrors));
    return under_->Stat(path);
  }
  Result<std::unique_ptr<FileLock>> Lock(const std::string& path) override {
    DI_RETURN_IF_ERROR(Before(kErrors));
    DI_ASSIGN_OR_RETURN(auto lock, under_->Lock(path));
    return std::unique_ptr<FileLock>(std::make_unique<CountedLock>(std::move(lock), handles_));
  }

 private:
  using Kinds = std::vector<FaultKind>;
  static inline const Kinds kErrors = {FaultKind::kError, FaultKind::kStall};
  static inline const Kinds kChanges = {FaultKind::kError, FaultKind::kFull, FaultKind::kStall};
  static inline const Kinds kReads = {FaultKind::kError, FaultKind::kShortRead,
                                      FaultKind::kFlippedRead, FaultKind::kMisplacedRead,
                                      FaultKind::kStall};
  static inline const Kinds kWrites = {
      FaultKind::kError,     FaultKind::kFull,  FaultKind::kTornWrite,    FaultKind::kFlippedWrite,
      FaultKind::kLostWrite, FaultKind::kStall, FaultKind::kDoneButFailed};

  class FaultFile final : public File {
   public:
    FaultFile(FaultFileSystem* owner, std::unique_ptr<File> under)
        : owner_(owner), handles_(owner->handles_), under_(std::move(under)) {
      ++*handles_;
    }
    ~FaultFile() override { --*handles_; }

    Result<size_t> ReadAt(std::span<std::byte> into, int64_t offset) override {
      const auto fault = owner_->Throw(kReads);
      if (!fault) return under_->ReadAt(into, offset);
      switch (*fault) {
        case FaultKind::kShortRead:
          return under_->ReadAt(into.first(owner_->Below(into.size())), offset);
        case FaultKind::kMisplacedRead:
          return under_->ReadAt(into, offset + kMisplacedBytes);
        case FaultKind::kFlippedRead: {
          DI_ASSIGN_OR_RETURN(const size_t count, under_->ReadAt(into, offset));
          if (count > 0) owner_->Flip(&into[owner_->Below(count)]);
          return count;
        }
        case FaultKind::kStall:
          return under_->ReadAt(into, offset);
        default:
          return Unavailable("injected");
      }
    }

    Status WriteAt(std::span<const std::byte> bytes, int64_t offset) override {
      const auto fault = owner_->Throw(kWrites);
      if (!fault) return under_->WriteAt(bytes, offset);
      switch (*fault) {
        case FaultKind::kTornWrite:
          (void)under_->WriteAt(bytes.first(owner_->Below(bytes.size())), offset);
          return Unavailable("injected");
        case FaultKind::kFlippedWrite: {
          std::vector<std::byte> flipped(bytes.begin(), bytes.end());
          if (!flipped.empty()) owner_->Flip(&flipped[owner_->Below(flipped.size())]);
          return under_->WriteAt(flipped, offset);
        }
        case FaultKind::kLostWrite:
          return OkStatus();
        case FaultKind::kDoneButFailed:
          (void)under_->WriteAt(bytes, offset);
          return Unavailable("injected");
        case FaultKind::kFull:
          return ResourceExhausted("injected");
        case FaultKind::kStall:
          return under_->WriteAt(bytes, offset);
        default:
          return Unavailable("injected");
      }
    }

    Status SyncData() override {
      return owner_->Change([&] { return under_->SyncData(); });
    }
    Result<int64_t> Size() override { return under_->Size(); }
    Status Allocate(int64_t size_bytes) override {
      return owner_->Change([&] { return under_->Allocate(size_bytes); });
    }

   private:
    static constexpr int64_t kMisplacedBytes = 4096;

    FaultFileSystem* owner_;
    std::shared_ptr<int64_t> handles_;
    std::unique_ptr<File> under_;
  };

  class CountedLock final : public FileLock {
   public:
    CountedLock(std::unique_ptr<FileLock> under, std::shared_ptr<int64_t> handles)
        : under_(std::move(under)), handles_(std::move(handles)) {
      ++*handles_;
    }
    ~CountedLock() override { --*handles_; }

   private:
    std::unique_ptr<FileLock> under_;
    std::shared_ptr<int64_t> handles_;
  };

  size_t Below(size_t count) { return count == 0 ? 0 : dice_() % count; }
  void Flip(std::byte* byte) { *byte ^= std::byte{static_cast<uint8_t>(1u << (dice_() % 8))}; }

  // One of the kinds, counted, or none. A stall has happened when it returns.
  std::optional<FaultKind> Throw(const Kinds& kinds) {
    if (dice_() % 1000 >= per_mille_) return std::nullopt;
    const FaultKind kind = kinds[Below(kinds.size())];
    ++counts_[static_cast<size_t>(kind)];
    if (kind == FaultKind::kStall) clock_->Advance(static_cast<int64_t>(dice_() % 120'000'000));
    return kind;
  }

  Status Before(const Kinds& kinds) {
    const auto fault = Throw(kinds);
    if (!fault || *fault == FaultKind::kStall) return OkStatus();
    return *fault == FaultKind::kFull ? ResourceExhausted("injected") : Unavailable("injected");
  }

  template <typename Operation>
  Status Change(Operation operation) {
    static const Kinds kinds = {FaultKind::kError, FaultKind::kFull, FaultKind::kStall,
                                FaultKind::kDoneButFailed};
    const auto fault = Throw(kinds);
    if (!fault || *fault == FaultKind::kStall) return operation();
    if (*fault == FaultKind::kDoneButFailed) (void)operation();
    return *fault == FaultKind::kFull ? ResourceExhausted("injected") : Unavailable("injected");
  }

  FileSystem* under_;
  FakeClock* clock_;
  std::mt19937 dice_;
  uint32_t per_mille_ = 0;
  std::array<int64_t, kNumFaultKinds> counts_{};
  std::shared_ptr<int64_t> handles_ = std::make_shared<int64_t>(0);
};

}  // namespace deepinfer
