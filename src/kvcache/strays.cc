#include "kvcache/strays.h"

#include <algorithm>
#include <set>

#include "base/log.h"
#include "kvcache/lease.h"
#include "kvcache/segment_file.h"

namespace deepinfer {
namespace {

int64_t LongestLifeNs(const StoreContext& context) {
  int64_t hours = 0;
  for (const RetentionPolicy& policy : context.options.retention) {
    hours = std::max(hours, policy.ttl_hours);
  }
  return hours * kNsPerHour;
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
  std::set<std::string> known;
  for (const SegmentInfo& info : context->segments.List()) known.insert(info.path);
  int64_t removed = 0;
  for (const std::string& folder : folders) {
    const auto names = context->files->List(folder);
    if (!names.ok()) continue;
    for (const std::string& name : *names) {
      const std::string path = folder + "/" + name;
      const auto parsed = ParseSegmentFileName(name);
      if (!parsed || known.contains(path)) continue;
      const auto info = context->files->Stat(path);
      const auto now_ns = FileSystemNowNs(context->files, folder);
      if (!info.ok() || !now_ns.ok() || *now_ns - info->modified_ns < LongestLifeNs(*context)) {
        continue;
      }
      if (parsed->extension != "bad" && IsReadable(*context, path)) continue;
      if (!context->files->Remove(path).ok()) continue;
      ++removed;
      Log(LogLevel::kInfo, "kv.stray_removed", {{"path", path}});
    }
  }
  return removed;
}

}  // namespace deepinfer
