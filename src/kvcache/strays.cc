#include "kvcache/strays.h"

#include <algorithm>
#include <optional>
#include <set>

#include "base/log.h"
#include "kvcache/lease.h"
#include "kvcache/segment_file.h"

namespace deepinfer {
namespace {

// The longest life of a class whose blocks are not pinned; none when that never ends.
std::optional<int64_t> LongestLifeNs(const StoreContext& context) {
  int64_t hours = 0;
  for (size_t i = 0; i < kNumRetentionClasses; ++i) {
    if (static_cast<RetentionClass>(i) == RetentionClass::kPinned) continue;
    const int64_t ttl_hours = context.options.retention[i].ttl_hours;
    if (ttl_hours == 0) return std::nullopt;
    hours = std::max(hours, ttl_hours);
  }
  return hours * kNsPerHour;
}

// Segment files of the folder that no entry of the table stands for.
std::vector<std::string> UnknownSegments(const StoreContext& context, const std::string& folder,
                                         const std::set<std::string>& known) {
  std::vector<std::string> unknown;
  const auto names = context.files->List(folder);
  if (!names.ok()) return unknown;
  for (const std::string& name : *names) {
    if (ParseSegmentFileName(name) && !known.contains(folder + "/" + name)) unknown.push_back(name);
  }
  return unknown;
}

// A segment that is only not loaded yet is ours to read.
bool IsReadable(const StoreContext& context, const std::string& path) {
  const auto superblock = ReadSuperblock(context.files, path, context.options.namespace_id);
  if (superblock.ok()) {
    const auto layout = superblock->Layout();
    return layout.ok() && *layout == context.options.layout;
  }
  // A file system that does not answer says nothing about the file.
  const StatusCode code = superblock.status().code();
  return code != StatusCode::kDataCorruption && code != StatusCode::kUnsupported;
}

}  // namespace

int64_t RemoveOldStrays(StoreContext* context, const std::vector<std::string>& folders) {
  const auto longest_life_ns = LongestLifeNs(*context);
  if (!longest_life_ns) return 0;
  std::set<std::string> known;
  for (const SegmentInfo& info : context->segments.List()) known.insert(info.path);
  int64_t removed = 0;
  for (const std::string& folder : folders) {
    const std::vector<std::string> unknown = UnknownSegments(*context, folder, known);
    if (unknown.empty()) continue;
    const auto now_ns = FileSystemNowNs(context->files, folder);
    if (!now_ns.ok()) continue;
    for (const std::string& name : unknown) {
      const std::string path = folder + "/" + name;
      const auto info = context->files->Stat(path);
      if (!info.ok() || *now_ns - info->modified_ns < *longest_life_ns) continue;
      if (!name.ends_with(".bad") && IsReadable(*context, path)) continue;
      if (!context->files->Remove(path).ok()) continue;
      ++removed;
      Log(LogLevel::kInfo, "kv.stray_removed", {{"path", path}});
    }
  }
  return removed;
}

}  // namespace deepinfer
