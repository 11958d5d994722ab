#include "kvcache/lease.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "base/crc32c.h"

namespace deepinfer {
namespace {

void CopyText(const std::string& text, std::array<char, 64>* field) {
  std::copy_n(text.begin(), std::min(text.size(), field->size() - 1), field->begin());
}

}  // namespace

void LeaseRecord::Seal() { crc = Crc32c(AsBytes(*this).first(offsetof(LeaseRecord, crc))); }

bool LeaseRecord::IsIntact() const {
  return magic == kLeaseMagic && crc == Crc32c(AsBytes(*this).first(offsetof(LeaseRecord, crc)));
}

std::string LeaseRecord::Boot() const {
  return {boot_id.data(), strnlen(boot_id.data(), boot_id.size())};
}

LeaseRecord NewLease(const std::string& node, const std::string& boot_id, uint64_t epoch) {
  LeaseRecord lease;
  lease.process_id = static_cast<uint32_t>(getpid());
  lease.epoch = epoch;
  CopyText(node, &lease.node);
  CopyText(boot_id, &lease.boot_id);
  return lease;
}

std::string SystemBootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id;
}

Status RenewLease(FileSystem* files, const std::string& folder, LeaseRecord* lease,
                  int64_t unix_ns) {
  ++lease->counter;
  lease->unix_ns = static_cast<uint64_t>(unix_ns);
  lease->Seal();
  DI_ASSIGN_OR_RETURN(const auto file,
                      files->Open(folder + "/lease", OpenMode::kCreateOrOpen, false));
  DI_RETURN_IF_ERROR(file->WriteAt(AsBytes(*lease), 0));
  return file->SyncData();
}

Result<LeaseSight> LookAtLease(FileSystem* files, const std::string& folder) {
  const std::string path = folder + "/lease";
  DI_ASSIGN_OR_RETURN(const FileInfo info, files->Stat(path));
  LeaseSight sight;
  sight.modified_ns = info.modified_ns;
  DI_ASSIGN_OR_RETURN(const auto file, files->Open(path, OpenMode::kRead, false));
  LeaseRecord record;
  const Status read =
      ReadExactly(file.get(), {reinterpret_cast<std::byte*>(&record), sizeof(record)}, 0);
  if (read.ok() && record.IsIntact()) sight.record = record;
  return sight;
}

Result<int64_t> FileSystemNowNs(FileSystem* files, const std::string& folder) {
  const std::string path = folder + "/probe";
  {
    DI_ASSIGN_OR_RETURN(const auto file, files->Open(path, OpenMode::kCreateOrOpen, false));
    const std::byte sign{1};
    DI_RETURN_IF_ERROR(file->WriteAt({&sign, 1}, 0));
    DI_RETURN_IF_ERROR(file->SyncData());
  }
  DI_ASSIGN_OR_RETURN(const FileInfo info, files->Stat(path));
  return info.modified_ns;
}

bool LeaseWatch::StandsStill(const std::string& owner, const LeaseSight& sight, int64_t now_us) {
  const uint64_t counter = sight.record ? sight.record->counter : 0;
  const auto [it, is_new] = seen_.try_emplace(owner);
  Seen& seen = it->second;
  if (is_new || seen.modified_ns != sight.modified_ns || seen.counter != counter) {
    seen = {sight.modified_ns, counter, now_us};
  }
  return now_us - seen.since_us >= watch_us_;
}

bool LeaseWatch::IsTooOld(const LeaseSight& sight, int64_t file_system_ns) const {
  // Another version renews in its own way; its folders are for its own kind.
  if (sight.record && sight.record->version != kFormatVersion) return false;
  return file_system_ns - sight.modified_ns > dead_us_ * 1000;
}

}  // namespace deepinfer
