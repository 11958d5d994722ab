#include "cli/kv_tools.h"

#include <fmt/chrono.h>
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "cli/io.h"
#include "cli/kv_environment.h"
#include "cli/kv_flags.h"
#include "cli/progress_line.h"
#include "kvcache/store_folders.h"
#include "kvcache/store_inspector.h"
#include "kvcache/store_secret.h"
#include "server/replay_folder.h"

namespace deepinfer {
namespace {

std::string_view ClassName(uint8_t retention) {
  return retention < kNumRetentionClasses ? kRetentionClassNames[retention] : "unknown";
}

std::string SizeText(int64_t bytes) {
  return bytes < int64_t{1} << 30
             ? fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20))
             : fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1 << 30));
}

// Hours since 1970.
std::string HourText(uint64_t hour) {
  constexpr uint64_t kLastHour = 253'402'300'800 / 3600;  // of the year 9999
  if (hour >= kLastHour) return "never";
  return fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(static_cast<std::time_t>(hour * 3600)));
}

std::string OwnersOf(const NamespaceView& view, bool json) {
  std::map<std::string, int64_t> owners;  // segments by node
  for (const SegmentView& segment : view.segments) {
    const auto folder = ParseEpochFolderName(segment.folder);
    ++owners[folder ? folder->node : "unknown"];
  }
  std::string text;
  for (const auto& [node, segments] : owners) {
    if (!text.empty()) text += json ? "," : ", ";
    text += json ? fmt::format("{}:{}", JsonString(node), segments)
                 : fmt::format("{} {}", node, segments);
  }
  return text;
}

std::string NamespaceStats(const NamespaceView& view, bool json) {
  std::array<int64_t, kNumRetentionClasses> blocks{};
  int64_t segments = 0;
  int64_t open = 0;
  int64_t bad = 0;
  int64_t unreadable = 0;
  int64_t bytes = 0;
  int64_t record_bytes = 0;
  uint64_t first_bucket = kNoBucket;
  for (const SegmentView& segment : view.segments) {
    ++segments;
    bytes += segment.size_bytes;
    open += segment.extension == "open";
    bad += segment.extension == "bad";
    unreadable += !segment.content;
    if (!segment.content || segment.extension == "bad") continue;
    const Superblock& superblock = segment.content->superblock;
    blocks[superblock.retention] += static_cast<int64_t>(segment.content->entries.size());
    record_bytes = segment.content->layout.record_bytes();
    first_bucket = std::min(first_bucket, superblock.bucket_hour);
  }
  int64_t all_blocks = 0;
  std::string by_class;
  for (size_t i = 0; i < kNumRetentionClasses; ++i) {
    all_blocks += blocks[i];
    if (i > 0) by_class += json ? "," : ", ";
    by_class += json ? fmt::format("\"{}\":{}", kRetentionClassNames[i], blocks[i])
                     : fmt::format("{} {}", kRetentionClassNames[i], blocks[i]);
  }
  const std::string id = BlockKey{view.id}.Hex();
  if (json) {
    const std::string oldest = first_bucket == kNoBucket ? "null" : std::to_string(first_bucket);
    return fmt::format(
        "{{\"namespace\":\"{}\",\"blocks\":{},\"blocks_by_class\":{{{}}},\"segments\":{},"
        "\"open_segments\":{},\"quarantined_segments\":{},\"unreadable_segments\":{},"
        "\"segments_by_owner\":{{{}}},\"bytes\":{},\"record_bytes\":{},\"first_bucket_hour\":{}}}",
        id, all_blocks, by_class, segments, open, bad, unreadable, OwnersOf(view, json), bytes,
        record_bytes, oldest);
  }
  return fmt::format(
      "namespace   {}\n  blocks    {} ({})\n  segments  {} ({} open, {} in quarantine, {} "
      "unreadable)\n  owners    {}\n  size      {}\n  expires   from {} on",
      id, all_blocks, by_class, segments, open, bad, unreadable, OwnersOf(view, json),
      SizeText(bytes), HourText(first_bucket));
}

std::string SegmentLine(const SegmentView& segment, bool json) {
  if (!segment.content) {
    const std::string message = segment.status.message();
    return json ? fmt::format("{{\"path\":{},\"state\":\"{}\",\"bytes\":{},\"error\":{}}}",
                              JsonString(segment.path), segment.extension, segment.size_bytes,
                              JsonString(message))
                : fmt::format("{}  {}  {}", segment.path, segment.extension, message);
  }
  const Superblock& superblock = segment.content->superblock;
  return fmt::format(
      fmt::runtime(json ? "{{\"path\":{},\"state\":\"{}\",\"class\":\"{}\",\"records\":{},"
                          "\"bucket_hour\":{},\"bytes\":{}}}"
                        : "{}  {}  {}  {} records  expires {}  {}"),
      json ? JsonString(segment.path) : segment.path, segment.extension,
      ClassName(superblock.retention), segment.content->entries.size(),
      json ? std::to_string(superblock.bucket_hour) : HourText(superblock.bucket_hour),
      json ? std::to_string(segment.size_bytes) : SizeText(segment.size_bytes));
}

std::string BlockLine(const SegmentView& segment, const IndexEntry& entry, bool json) {
  return fmt::format(
      fmt::runtime(json ? "{{\"key\":\"{}\",\"block\":{},\"replay_gen\":{},\"class\":\"{}\","
                          "\"tenant_tag\":\"{:016x}\",\"path\":{},\"page\":{}}}"
                        : "{}  block {}  gen {}  {}  tenant {:016x}  {} page {}"),
      entry.key.Hex(), entry.block_number, entry.replay_gen, ClassName(entry.retention),
      entry.tenant_tag, json ? JsonString(segment.path) : segment.path, entry.page);
}

bool IsListed(const SegmentView& segment, const KvListOptions& options) {
  if (!options.owner.empty()) {
    const auto folder = ParseEpochFolderName(segment.folder);
    if (!folder || folder->node != options.owner) return false;
  }
  return options.retention.empty() ||
         (segment.content && ClassName(segment.content->superblock.retention) == options.retention);
}

std::string ActionLine(const JanitorAction& action, bool json) {
  return fmt::format(
      fmt::runtime(json ? "{{\"path\":{},\"action\":\"{}\",\"reason\":\"{}\",\"live\":{},"
                          "\"records\":{}}}"
                        : "{}  {} ({}; {} of {} records alive)"),
      json ? JsonString(action.path) : action.path, action.action, action.reason,
      action.live_records, action.records);
}

Status PrintErased(int64_t blocks, bool json) {
  return PrintLine(json ? fmt::format("{{\"erased_blocks\":{}}}", blocks)
                        : fmt::format("{} blocks erased", blocks));
}

// Makes every bad record unreachable and rewrites its segment without it.
Status Repair(KvEnvironment* environment, const std::string& dir, const NamespaceView& view,
              const std::string& key_file) {
  DI_ASSIGN_OR_RETURN(const KvBlockLayout layout, LayoutOf(view));
  DI_ASSIGN_OR_RETURN(
      const auto store,
      OpenKvStore(environment, dir,
                  {.namespace_id = view.id, .layout = layout, .key_file = key_file}));
  for (const SegmentInfo& info : store->context().segments.List()) {
    if (info.peer) continue;
    const auto content = ReadSegment(environment->files.get(), info.path, view.id);
    if (!content.ok()) continue;
    for (const IndexEntry& entry : content->entries) {
      const auto indexed = store->context().index.Find(entry.key);
      if (!indexed || indexed->location.segment != info.id) continue;
      PageBuffer record;
      if (!store->loader()->ReadNow({entry.key, entry.block_number, *indexed}, &record).ok()) {
        store->janitor()->RewriteSoon(info.id);
      }
    }
  }
  (void)store->RunJanitor();
  FinishCopies(store.get());
  return OkStatus();
}

}  // namespace

Status PrintKvStats(const std::string& dir, bool json) {
  KvEnvironment environment;
  DI_ASSIGN_OR_RETURN(const auto views, InspectKvStore(environment, dir));
  std::vector<std::string> items;
  for (const NamespaceView& view : views) items.push_back(NamespaceStats(view, json));
  if (json) return PrintLine("{\"namespaces\":" + JoinJson(items) + "}");
  for (const std::string& item : items) DI_RETURN_IF_ERROR(PrintLine(item));
  return OkStatus();
}

Status PrintKvList(const std::string& dir, const KvListOptions& options, bool json) {
  KvEnvironment environment;
  DI_ASSIGN_OR_RETURN(const auto views, InspectKvStore(environment, dir));
  std::vector<std::string> items;
  for (const NamespaceView& view : views) {
    if (!BlockKey{view.id}.Hex().starts_with(options.ns)) continue;
    std::vector<BlockKey> wanted;
    if (!options.prefix_key.empty()) {
      DI_ASSIGN_OR_RETURN(const BlockKey key, ParseKey(options.prefix_key));
      wanted = DescendantsOf(environment.files.get(), view, key);
      std::ranges::sort(wanted);
    }
    for (const SegmentView& segment : view.segments) {
      if (!IsListed(segment, options)) continue;
      if (!options.blocks && options.prefix_key.empty()) {
        items.push_back(SegmentLine(segment, json));
        continue;
      }
      if (!segment.content) continue;
      for (const IndexEntry& entry : segment.content->entries) {
        if (!options.prefix_key.empty() && !std::ranges::binary_search(wanted, entry.key)) continue;
        items.push_back(BlockLine(segment, entry, json));
      }
    }
  }
  if (json) {
    return PrintLine(fmt::format("{{\"items\":{}}}", JoinJson(items)));
  }
  for (const std::string& item : items) DI_RETURN_IF_ERROR(PrintLine(item));
  return OkStatus();
}

Status VerifyKvStore(const std::string& dir, const KvVerifyOptions& options, bool json,
                     bool* clean) {
  KvEnvironment environment;
  if (options.repair) {
    DI_ASSIGN_OR_RETURN(const auto broken, InspectKvStore(environment, dir));
    for (const NamespaceView& view : broken) {
      DI_RETURN_IF_ERROR(Repair(&environment, dir, view, options.key_file));
    }
  }
  DI_ASSIGN_OR_RETURN(const auto views, InspectKvStore(environment, dir));
  int64_t segments = 0;
  int64_t records = 0;
  std::vector<std::string> problems;
  int64_t num_segments = 0;
  for (const NamespaceView& view : views) {
    num_segments += static_cast<int64_t>(view.segments.size());
  }
  int64_t looked_at = 0;
  std::optional<ProgressLine> line(num_segments);
  const auto show = [&](const std::string& path) { line->Show(looked_at++, path); };
  for (const NamespaceView& view : views) {
    DI_ASSIGN_OR_RETURN(const VerifyReport report,
                        VerifyNamespace(environment.files.get(), view, options.sample, show));
    segments += report.segments;
    records += report.records;
    for (const VerifyProblem& problem : report.problems) {
      problems.push_back(
          json ? fmt::format("{{\"path\":{},\"record\":{},\"problem\":{}}}",
                             JsonString(problem.path), problem.record, JsonString(problem.what))
               : fmt::format("{} record {}: {}", problem.path, problem.record, problem.what));
    }
  }
  line.reset();
  *clean = problems.empty();
  if (json) {
    return PrintLine(fmt::format("{{\"segments\":{},\"records\":{},\"problems\":{}}}", segments,
                                 records, JoinJson(problems)));
  }
  for (const std::string& problem : problems) DI_RETURN_IF_ERROR(PrintLine(problem));
  return PrintLine(fmt::format("{} segments, {} records checked, {} problems", segments, records,
                               problems.size()));
}

Status CollectKvGarbage(const std::string& dir, const KvGcOptions& options, bool json) {
  KvEnvironment environment;
  if (options.target_free_percent > 0 && options.space_mb <= 0) {
    return InvalidRequest("--target-free needs --space-mb");
  }
  DI_ASSIGN_OR_RETURN(const auto views, InspectKvStore(environment, dir));
  std::vector<std::string> items;
  for (const NamespaceView& view : views) {
    const int64_t space_bytes =
        options.space_mb > 0 ? options.space_mb << 20 : std::numeric_limits<int64_t>::max() / 2;
    const auto layout = LayoutOf(view);
    if (!layout.ok()) continue;  // nothing to collect
    const auto store = OpenKvStore(&environment, dir,
                                   {.namespace_id = view.id,
                                    .layout = *layout,
                                    .space_bytes = space_bytes,
                                    .key_file = options.key_file});
    DI_RETURN_IF_ERROR(store.status());
    auto actions = options.dry_run ? (*store)->janitor()->Plan() : (*store)->RunJanitor();
    if (options.target_free_percent > 0) {
      const auto freed =
          (*store)->janitor()->FreeSpace(options.target_free_percent / 100, options.dry_run);
      actions.insert(actions.end(), freed.begin(), freed.end());
    }
    if (!options.dry_run) FinishCopies(store->get());
    for (const JanitorAction& action : actions) items.push_back(ActionLine(action, json));
  }
  if (json) return PrintLine(fmt::format("{{\"actions\":{}}}", JoinJson(items)));
  for (const std::string& item : items) DI_RETURN_IF_ERROR(PrintLine(item));
  return PrintLine(
      fmt::format("{} segments {}", items.size(), options.dry_run ? "would change" : "changed"));
}

Status EraseFromKvStore(const std::string& dir, const KvEraseOptions& options, bool json) {
  KvEnvironment environment;
  if (!options.tenant.empty()) {
    DI_ASSIGN_OR_RETURN(const auto secret, LoadOrCreateSecret(environment.files.get(), dir));
    DI_RETURN_IF_ERROR(
        EraseKeptTurns(ReplayFolderIn(dir), TenantTag(secret, options.tenant)).status());
  }
  DI_ASSIGN_OR_RETURN(const auto views, InspectKvStore(environment, dir));
  int64_t erased = 0;
  if (!options.ns.empty()) {
    DI_ASSIGN_OR_RETURN(const NamespaceView* view, SelectNamespace(views, options.ns));
    DI_ASSIGN_OR_RETURN(erased, RemoveNamespace(&environment, *view));
    return PrintErased(erased, json);
  }
  for (const NamespaceView& view : views) {
    const auto layout = LayoutOf(view);
    if (!layout.ok()) continue;  // nothing to erase
    const auto store =
        OpenKvStore(&environment, dir,
                    {.namespace_id = view.id, .layout = *layout, .key_file = options.key_file});
    DI_RETURN_IF_ERROR(store.status());
    if (!options.tenant.empty()) {
      DI_ASSIGN_OR_RETURN(const auto secret, LoadOrCreateSecret(environment.files.get(), dir));
      DI_ASSIGN_OR_RETURN(const int64_t count,
                          (*store)->EraseTenant(TenantTag(secret, options.tenant)));
      erased += count;
    } else {
      DI_ASSIGN_OR_RETURN(const BlockKey key, ParseKey(options.prefix_key));
      // Looked at again: opening the store has sealed and renamed segments.
      DI_ASSIGN_OR_RETURN(const auto now, InspectKvStore(environment, dir));
      for (const NamespaceView& sealed : now) {
        if (sealed.id != view.id) continue;
        DI_ASSIGN_OR_RETURN(const int64_t count, (*store)->EraseKeys(DescendantsOf(
                                                     environment.files.get(), sealed, key)));
        erased += count;
      }
    }
    // The bytes leave the disk now, not at the next start.
    (void)(*store)->RunJanitor();
    FinishCopies(store->get());
  }
  return PrintErased(erased, json);
}

}  // namespace deepinfer
