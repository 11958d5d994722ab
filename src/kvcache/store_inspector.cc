#include "kvcache/store_inspector.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <unordered_map>

#include "kvcache/page_buffer.h"
#include "kvcache/store_folders.h"

namespace deepinfer {
namespace {

constexpr int64_t kMaxNamespaceBytes = 65'536;
constexpr size_t kKeyDigits = 64;

Result<Sha256Digest> NamespaceOf(FileSystem* files, const std::string& folder) {
  DI_ASSIGN_OR_RETURN(const auto bytes,
                      ReadWholeFile(files, folder + "/ns.toml", kMaxNamespaceBytes));
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  constexpr std::string_view kBegin = "namespace = \"";
  if (!text.starts_with(kBegin)) return DataCorruption(folder + "/ns.toml names no namespace");
  DI_ASSIGN_OR_RETURN(const BlockKey id, ParseKey(text.substr(kBegin.size(), kKeyDigits)));
  return id.bytes;
}

SegmentView ViewSegment(FileSystem* files, const std::string& folder, const std::string& name,
                        const std::string& extension, const Sha256Digest& namespace_id) {
  SegmentView view;
  view.path = folder + "/" + name;
  view.folder = folder.substr(folder.rfind('/') + 1);
  view.extension = extension;
  if (const auto info = files->Stat(view.path); info.ok()) view.size_bytes = info->size_bytes;
  auto content = ReadSegment(files, view.path, namespace_id);
  view.status = content.status();
  if (content.ok()) view.content = *std::move(content);
  return view;
}

}  // namespace

Result<BlockKey> ParseKey(const std::string& hex) {
  if (hex.size() != kKeyDigits) return InvalidRequest("a key has 64 hexadecimal digits");
  BlockKey key;
  for (size_t i = 0; i < kKeyDigits; ++i) {
    const auto digit = std::string_view("0123456789abcdef").find(hex[i]);
    if (digit == std::string_view::npos) return InvalidRequest("a key has 64 hexadecimal digits");
    key.bytes[i / 2] = static_cast<uint8_t>(size_t{key.bytes[i / 2]} << 4 | digit);
  }
  return key;
}

Result<std::vector<NamespaceView>> InspectStore(FileSystem* files, const std::string& root) {
  DI_ASSIGN_OR_RETURN(const auto names, files->List(root + "/v1"));
  std::vector<NamespaceView> views;
  for (const std::string& name : names) {
    NamespaceView view;
    view.folder = root + "/v1/" + name;
    const auto id = NamespaceOf(files, view.folder);
    if (!id.ok()) continue;  // the secret, or a folder being made
    view.id = *id;
    DI_ASSIGN_OR_RETURN(const auto epochs, ListEpochFolders(files, view.folder));
    for (const EpochFolder& epoch : epochs) {
      const std::string folder = view.folder + "/" + epoch.name;
      const auto segment_names = files->List(folder);
      if (!segment_names.ok()) continue;  // its owner removed it meanwhile
      for (const std::string& segment : *segment_names) {
        const auto parsed = ParseSegmentFileName(segment);
        if (!parsed) continue;
        view.segments.push_back(ViewSegment(files, folder, segment, parsed->extension, view.id));
      }
    }
    views.push_back(std::move(view));
  }
  return views;
}

Result<VerifyReport> VerifyNamespace(FileSystem* files, const NamespaceView& view, int64_t sample,
                                     const std::function<void(const std::string&)>& on_segment) {
  if (sample < 1) return InvalidRequest("the sample step is at least 1");
  VerifyReport report;
  for (const SegmentView& segment : view.segments) {
    on_segment(segment.path);
    if (segment.extension == "bad") {
      report.problems.push_back({segment.path, -1, "in quarantine"});
      continue;
    }
    ++report.segments;
    if (!segment.content) {
      report.problems.push_back({segment.path, -1, segment.status.message()});
      continue;
    }
    const SegmentContent& content = *segment.content;
    if (segment.extension == "seg" && !content.from_footer) {
      report.problems.push_back({segment.path, -1, "sealed, but its footer is broken"});
    }
    const auto file = files->Open(segment.path, OpenMode::kRead, false);
    if (!file.ok()) continue;  // removed meanwhile
    PageBuffer record(content.layout.record_bytes());
    if (!record.ok()) return ResourceExhausted("no memory for a record");
    for (size_t i = 0; i < content.entries.size(); i += static_cast<size_t>(sample)) {
      const auto place = static_cast<int64_t>(i);
      const Status read =
          ReadExactly(file->get(), record.bytes(), content.layout.RecordOffset(place));
      const RecordFault fault =
          read.ok() ? VerifyRecord(content.layout, record.bytes(), content.entries[i].key,
                                   content.entries[i].block_number)
                    : RecordFault::kHeader;
      ++report.records;
      if (fault != RecordFault::kNone) {
        report.problems.push_back({segment.path, place, std::string(RecordFaultName(fault))});
      }
    }
  }
  DI_ASSIGN_OR_RETURN(const auto epochs, ListEpochFolders(files, view.folder));
  for (const EpochFolder& epoch : epochs) {
    const auto names = files->List(view.folder + "/" + epoch.name);
    if (!names.ok()) continue;
    for (const std::string& name : *names) {
      if (ParseSegmentFileName(name) || IsStoreFile(name)) continue;
      report.problems.push_back({view.folder + "/" + epoch.name + "/" + name, -1, "unknown file"});
    }
  }
  return report;
}

std::vector<ChainBlock> ChainTo(FileSystem* files, const NamespaceView& view, const BlockKey& key) {
  struct Place {
    const SegmentView* segment;
    size_t record;
  };
  // A header knows the first 16 bytes of its parent's key, which is enough to find it.
  std::map<std::array<uint8_t, 16>, Place> by_prefix;
  const auto prefix_of = [](const BlockKey& of) {
    std::array<uint8_t, 16> prefix;
    std::copy_n(of.bytes.begin(), prefix.size(), prefix.begin());
    return prefix;
  };
  for (const SegmentView& segment : view.segments) {
    if (!segment.content || segment.extension == "bad") continue;
    for (size_t i = 0; i < segment.content->entries.size(); ++i) {
      by_prefix.try_emplace(prefix_of(segment.content->entries[i].key), Place{&segment, i});
    }
  }
  std::vector<ChainBlock> chain;
  for (auto next = by_prefix.find(prefix_of(key)); next != by_prefix.end();) {
    const auto& [segment, record] = next->second;
    const IndexEntry& entry = segment->content->entries[record];
    if (chain.empty() ? entry.key != key : entry.block_number + 1 != chain.back().number) break;
    chain.push_back({entry.key, entry.block_number});
    if (entry.block_number == 0) break;
    const auto file = files->Open(segment->path, OpenMode::kRead, false);
    if (!file.ok()) break;
    RecordHeader header;
    const Status read =
        ReadExactly(file->get(), {reinterpret_cast<std::byte*>(&header), sizeof(header)},
                    segment->content->layout.RecordOffset(static_cast<int64_t>(record)));
    if (!read.ok() || !header.IsIntact()) break;
    next = by_prefix.find(header.parent_prefix);
  }
  std::ranges::reverse(chain);
  return chain;
}

std::vector<BlockKey> DescendantsOf(FileSystem* files, const NamespaceView& view,
                                    const BlockKey& key) {
  struct Place {
    const SegmentView* segment;
    size_t record;
  };
  // Entries know four bytes of the parent, records sixteen.
  std::unordered_multimap<uint32_t, Place> by_hint;
  bool stored = false;
  for (const SegmentView& segment : view.segments) {
    if (!segment.content) continue;
    for (size_t i = 0; i < segment.content->entries.size(); ++i) {
      const IndexEntry& entry = segment.content->entries[i];
      stored = stored || entry.key == key;
      if (entry.block_number > 0) by_hint.emplace(entry.parent_hint, Place{&segment, i});
    }
  }
  if (!stored) return {};
  std::vector<BlockKey> chain = {key};
  std::set<BlockKey> seen = {key};
  for (size_t next = 0; next < chain.size(); ++next) {
    const BlockKey parent = chain[next];
    uint32_t hint;
    std::memcpy(&hint, parent.bytes.data(), sizeof(hint));
    const auto [first, last] = by_hint.equal_range(hint);
    for (auto it = first; it != last; ++it) {
      const SegmentContent& content = *it->second.segment->content;
      const auto file = files->Open(it->second.segment->path, OpenMode::kRead, false);
      if (!file.ok()) continue;
      RecordHeader header;
      const Status read =
          ReadExactly(file->get(), {reinterpret_cast<std::byte*>(&header), sizeof(header)},
                      content.layout.RecordOffset(static_cast<int64_t>(it->second.record)));
      if (!read.ok() || !header.IsIntact()) continue;
      const bool child = std::equal(header.parent_prefix.begin(), header.parent_prefix.end(),
                                    parent.bytes.begin());
      if (child && seen.insert(header.key).second) chain.push_back(header.key);
    }
  }
  return chain;
}

}  // namespace deepinfer
