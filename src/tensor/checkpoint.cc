#include "tensor/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <optional>
#include <system_error>
#include <utility>

#include "tensor/checkpoint_index.h"
#include "tensor/json_events.h"

namespace deepinfer {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIndexFile = "model.safetensors.index.json";
constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kOptionalPrefix = "model.";

// The largest released index has about 100,000 names; the limit only bounds hostile files.
constexpr uint64_t kMaxIndexBytes = 100'000'000;

std::string_view CanonicalName(std::string_view name) {
  if (name.starts_with(kOptionalPrefix)) name.remove_prefix(kOptionalPrefix.size());
  return name;
}

Result<CheckpointIndex> ReadIndex(const std::string& path) {
  DI_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  const std::span<const std::byte> bytes = file.bytes();
  if (bytes.size() > kMaxIndexBytes) {
    return DataCorruption(
        fmt::format("{}: {} bytes are above the limit of {}", path, bytes.size(), kMaxIndexBytes));
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  Result<CheckpointIndex> index = ParseCheckpointIndex(text);
  if (!index.ok()) return index.status().Annotate(path);
  return index;
}

// Says for all missing shards at once, so that one download repairs the directory.
Status CheckShardsExist(const fs::path& dir, const std::vector<std::string>& shards) {
  constexpr size_t kMaxListed = 5;
  std::string missing;
  size_t num_missing = 0;
  for (const std::string& shard : shards) {
    std::error_code error;
    if (fs::exists(dir / shard, error)) continue;
    if (++num_missing <= kMaxListed) missing += (missing.empty() ? "" : ", ") + shard;
  }
  if (num_missing == 0) return OkStatus();
  if (num_missing > kMaxListed) missing += ", ...";
  return NotFound(
      fmt::format("{}: {} of {} shards named by {} are missing ({}); finish the "
                  "download",
                  dir.string(), num_missing, shards.size(), kIndexFile, missing));
}

// The weight file of a directory without an index.
Result<std::string> FindSingleFile(const fs::path& dir) {
  std::error_code error;
  if (fs::exists(dir / kSingleFile, error)) return (dir / kSingleFile).string();
  std::vector<std::string> candidates;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".safetensors") candidates.push_back(it->path().string());
  }
  if (error) return NotFound(fmt::format("{}: cannot list: {}", dir.string(), error.message()));
  if (candidates.size() == 1) return candidates.front();
  if (candidates.empty()) {
    return NotFound(fmt::format("{}: no {} and no .safetensors file; is this a model directory?",
                                dir.string(), kIndexFile));
  }
  return NotFound(fmt::format("{}: {} .safetensors files but no {}; download the index",
                              dir.string(), candidates.size(), kIndexFile));
}

std::string FileName(const std::string& path) { return fs::path(path).filename().string(); }

std::string JoinDTypes(std::initializer_list<DType> dtypes) {
  std::string text;
  for (const DType dtype : dtypes) {
    if (!text.empty()) text += " or ";
    text += DTypeName(dtype);
  }
  return text;
}

}  // namespace

Result<Checkpoint> Checkpoint::Open(const std::string& dir) {
  const fs::path root(dir);
  std::error_code error;
  if (!fs::is_directory(root, error)) {
    return NotFound(dir + ": no such model directory");
  }
  Checkpoint checkpoint;
  checkpoint.dir_ = dir;
  const std::string index_path = (root / kIndexFile).string();
  if (!fs::exists(index_path, error)) {
    DI_ASSIGN_OR_RETURN(const std::string path, FindSingleFile(root));
    DI_RETURN_IF_ERROR(checkpoint.AddShard(path));
    DI_RETURN_IF_ERROR(checkpoint.SortEntries());
    return checkpoint;
  }
  DI_ASSIGN_OR_RETURN(const CheckpointIndex index, ReadIndex(index_path));
  DI_RETURN_IF_ERROR(CheckShardsExist(root, index.shards));
  for (const std::string& shard : index.shards) {
    DI_RETURN_IF_ERROR(checkpoint.AddShard((root / shard).string()));
  }
  DI_RETURN_IF_ERROR(checkpoint.SortEntries());
  DI_RETURN_IF_ERROR(checkpoint.CheckAgainstIndex(index).Annotate(index_path));
  return checkpoint;
}

Status Checkpoint::AddShard(const std::string& path) {
  DI_ASSIGN_OR_RETURN(SafetensorsFile shard, SafetensorsFile::Open(path));
  for (const NamedTensor& tensor : shard.tensors()) {
    entries_.push_back({std::string(CanonicalName(tensor.name)), tensor.view, shards_.size()});
    total_bytes_ += tensor.view.size_bytes;
  }
  shards_.push_back(std::move(shard));
  return OkStatus();
}

Status Checkpoint::SortEntries() {
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
    return a.name != b.name ? a.name < b.name : a.shard < b.shard;
  });
  const auto twice =
      std::adjacent_find(entries_.begin(), entries_.end(),
                         [](const Entry& a, const Entry& b) { return a.name == b.name; });
  if (twice == entries_.end()) return OkStatus();
  const Entry& other = *std::next(twice);
  if (twice->shard == other.shard) {
    return DataCorruption(fmt::format("{}: tensor {} is present with and without the prefix \"{}\"",
                                      shard_path(other.shard), QuoteForMessage(other.name),
                                      kOptionalPrefix));
  }
  return DataCorruption(fmt::format("{}: tensor {} is also in {}", shard_path(other.shard),
                                    QuoteForMessage(other.name),
                                    FileName(shard_path(twice->shard))));
}

Status Checkpoint::CheckAgainstIndex(const CheckpointIndex& index) const {
  std::vector<std::pair<std::string_view, size_t>> listed;
  listed.reserve(index.entries.size());
  for (const CheckpointIndexEntry& entry : index.entries) {
    listed.emplace_back(CanonicalName(entry.tensor), entry.shard);
  }
  std::sort(listed.begin(), listed.end());
  const auto twice =
      std::adjacent_find(listed.begin(), listed.end(),
                         [](const auto& a, const auto& b) { return a.first == b.first; });
  if (twice != listed.end()) {
    return DataCorruption(fmt::format("tensor {} is listed twice", QuoteForMessage(twice->first)));
  }
  // Both lists ascend by name, so one pass finds what either lacks.
  auto entry = entries_.begin();
  for (const auto& [name, shard] : listed) {
    if (entry != entries_.end() && entry->name < name) return NotListed(*entry);
    if (entry == entries_.end() || entry->name != name || entry->shard != shard) {
      return DataCorruption(
          fmt::format("tensor {} is not in its shard {}; the index and the shards "
                      "are of different checkpoints",
                      QuoteForMessage(name), index.shards[shard]));
    }
    ++entry;
  }
  return entry == entries_.end() ? OkStatus() : NotListed(*entry);
}

Status Checkpoint::NotListed(const Entry& entry) const {
  return DataCorruption(
      fmt::format("tensor {} of {} is not listed; the index and the shards are "
                  "of different checkpoints",
                  QuoteForMessage(entry.name), FileName(shard_path(entry.shard))));
}

const Checkpoint::Entry* Checkpoint::FindEntry(std::string_view name) const {
  const auto found =
      std::lower_bound(entries_.begin(), entries_.end(), name,
                       [](const Entry& entry, std::string_view key) { return entry.name < key; });
  return found != entries_.end() && found->name == name ? &*found : nullptr;
}

const TensorView* Checkpoint::Find(std::string_view name) const {
  const Entry* entry = FindEntry(name);
  return entry == nullptr ? nullptr : &entry->view;
}

Result<TensorView> Checkpoint::Require(std::string_view name, std::initializer_list<DType> dtypes,
                                       const Shape& shape) {
  const Entry* entry = FindEntry(name);
  if (entry == nullptr) {
    return NotFound(
        fmt::format("{}: tensor {} ({} {}) is missing; the checkpoint is incomplete or "
                    "does not fit its configuration",
                    dir_, QuoteForMessage(name), JoinDTypes(dtypes), shape.ToString()));
  }
  const TensorView& view = entry->view;
  const bool dtype_fits = std::find(dtypes.begin(), dtypes.end(), view.dtype) != dtypes.end();
  if (!dtype_fits || view.shape != shape) {
    return DataCorruption(fmt::format("{}: tensor {}: expected {} {}, found {} {}",
                                      shard_path(entry->shard), QuoteForMessage(name),
                                      JoinDTypes(dtypes), shape.ToString(), DTypeName(view.dtype),
                                      view.shape.ToString()));
  }
  entries_[static_cast<size_t>(entry - entries_.data())].consumed = true;
  return view;
}

std::vector<std::string_view> Checkpoint::UnconsumedNames() const {
  std::vector<std::string_view> names;
  for (const Entry& entry : entries_) {
    if (!entry.consumed) names.emplace_back(entry.name);
  }
  return names;
}

int Checkpoint::ShardOf(std::string_view name) const {
  const Entry* entry = FindEntry(name);
  return entry == nullptr ? -1 : static_cast<int>(entry->shard);
}

void Checkpoint::Advise(MapAdvice advice) const {
  for (const SafetensorsFile& shard : shards_) shard.file().Advise(advice);
}

void Checkpoint::UseHugePages() const {
  for (const SafetensorsFile& shard : shards_) shard.file().UseHugePages();
}

uint64_t Checkpoint::HugePageBytes() const {
  uint64_t total = 0;
  for (const SafetensorsFile& shard : shards_) total += shard.file().HugePageBytes();
  return total;
}

Status Checkpoint::Prefault(uint64_t chunk_bytes, const PrefaultProgress& progress) const {
  uint64_t total_file_bytes = 0;
  for (const SafetensorsFile& shard : shards_) total_file_bytes += shard.file().bytes().size();
  uint64_t done_before = 0;
  for (const SafetensorsFile& shard : shards_) {
    const auto shard_progress = [&](uint64_t done_bytes, uint64_t) {
      return !progress || progress(done_before + done_bytes, total_file_bytes);
    };
    DI_RETURN_IF_ERROR(shard.file().Prefault(chunk_bytes, shard_progress));
    done_before += shard.file().bytes().size();
  }
  return OkStatus();
}

}  // namespace deepinfer
