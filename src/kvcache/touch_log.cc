#include "kvcache/touch_log.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <set>

#include "kvcache/index_log.h"
#include "kvcache/store_folders.h"

namespace deepinfer {
namespace {

std::string NameOf(const std::string& path) { return path.substr(path.rfind('/') + 1); }

std::string PeerTouchName(uint64_t epoch) { return fmt::format("touch-{:016x}.log", epoch); }

}  // namespace

bool ReadTouchPage(File* file, int64_t offset, TouchPage* page) {
  const std::span bytes(reinterpret_cast<std::byte*>(page), sizeof(TouchPage));
  for (int tries = 0; tries < kReadTries; ++tries) {
    const auto read = ReadUpTo(file, bytes, offset);
    if (!read.ok() || *read < bytes.size()) return false;
    if (page->IsIntact()) break;
  }
  return true;
}

void TouchLog::Note(const BlockLocation& location) {
  const std::lock_guard lock(mutex_);
  ++noted_[LogPlace(location.segment, location.record)];
}

void TouchLog::Write(const std::string& own_folder) {
  std::unordered_map<uint64_t, uint32_t> noted;
  {
    const std::lock_guard lock(mutex_);
    noted.swap(noted_);
  }
  std::map<std::string, std::vector<TouchItem>> by_path;
  for (const auto& [place, count] : noted) {
    const auto info = context_->segments.Find(static_cast<uint32_t>(place >> 32));
    if (!info) continue;
    std::string path = info->folder + "/touch.log";
    if (info->peer) {
      const auto folder = ParseEpochFolderName(NameOf(info->folder));
      if (!folder) continue;
      path = own_folder + "/" + PeerTouchName(folder->epoch);
    }
    by_path[path].push_back(
        {static_cast<uint32_t>(info->number), static_cast<uint16_t>(place & 0xFFFF),
         static_cast<uint16_t>(std::min<uint32_t>(count, std::numeric_limits<uint16_t>::max()))});
  }
  for (const auto& [path, items] : by_path) Append(path, items);
}

void TouchLog::Append(const std::string& path, const std::vector<TouchItem>& items) {
  const auto file = context_->files->Open(path, OpenMode::kCreateOrOpen, false);
  if (!file.ok()) return;
  const auto size = (*file)->Size();
  if (!size.ok()) return;
  int64_t offset = *size / kPageBytes * kPageBytes;
  const auto hour = static_cast<uint32_t>(context_->wall_clock->UnixNs() / kNsPerHour);
  for (size_t begin = 0; begin < items.size(); begin += kTouchesPerPage) {
    TouchPage page;
    page.hour = hour;
    page.count = static_cast<uint16_t>(std::min(kTouchesPerPage, items.size() - begin));
    std::copy_n(items.begin() + static_cast<std::ptrdiff_t>(begin), page.count, page.items.begin());
    page.Seal();
    if (!(*file)->WriteAt(AsBytes(page), offset).ok()) break;
    offset += kPageBytes;
  }
  (void)(*file)->SyncData();
}

void TouchLog::ReadPeers(const std::vector<std::string>& owned_folders) {
  if (owned_folders.empty()) return;
  const std::string parent = owned_folders.front().substr(0, owned_folders.front().rfind('/'));
  const auto folders = ListEpochFolders(context_->files, parent);
  if (!folders.ok()) return;
  const std::set<std::string> owned(owned_folders.begin(), owned_folders.end());
  for (const std::string& mine : owned_folders) {
    const auto parsed = ParseEpochFolderName(NameOf(mine));
    if (!parsed) continue;
    std::unordered_map<uint32_t, uint32_t> segments;  // number in the folder to ours
    for (const uint32_t id : context_->segments.InFolder(mine)) {
      if (const auto info = context_->segments.Find(id)) {
        segments[static_cast<uint32_t>(info->number)] = id;
      }
    }
    for (const EpochFolder& folder : *folders) {
      ReadFrom(parent + "/" + folder.name + "/" + PeerTouchName(parsed->epoch), segments);
    }
  }
}

void TouchLog::ReadFrom(const std::string& path,
                        const std::unordered_map<uint32_t, uint32_t>& segments) {
  const auto file = context_->files->Open(path, OpenMode::kRead, false);
  if (!file.ok()) return;
  int64_t& offset = offsets_[path];
  TouchPage page;
  for (;; offset += kPageBytes) {
    if (!ReadTouchPage(file->get(), offset, &page)) return;
    if (!page.IsIntact()) {
      // The last one may be on its way; of those before it a broken one costs its own touches only.
      TouchPage next;
      if (!ReadTouchPage(file->get(), offset + kPageBytes, &next)) return;
      continue;
    }
    const uint32_t minute = StoreMinute(int64_t{page.hour} * kNsPerHour);
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < page.count; ++i) {
      const TouchItem& item = page.items[i];
      const auto segment = segments.find(item.segment_number);
      if (segment == segments.end()) continue;
      Told& told = told_[segment->second][item.record_index];
      told.minute = std::max(told.minute, minute);
      told.touches =
          static_cast<uint8_t>(std::min<uint32_t>(uint32_t{told.touches} + item.touches, 255));
    }
  }
}

TouchLog::Told TouchLog::TellAbout(const BlockLocation& location) const {
  const std::lock_guard lock(mutex_);
  const auto segment = told_.find(location.segment);
  if (segment == told_.end()) return {};
  const auto record = segment->second.find(location.record);
  return record == segment->second.end() ? Told{} : record->second;
}

void TouchLog::Forget(uint32_t segment) {
  const std::lock_guard lock(mutex_);
  told_.erase(segment);
}

}  // namespace deepinfer
