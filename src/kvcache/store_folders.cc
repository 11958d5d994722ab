#include "kvcache/store_folders.h"

#include <fmt/core.h>
#include <sys/random.h>

#include <algorithm>
#include <charconv>

#include "kvcache/keys.h"

namespace deepinfer {
namespace {

constexpr int64_t kMaxTextBytes = 65'536;
constexpr size_t kNamespaceDigits = 16;
constexpr size_t kEpochDigits = 16;
constexpr std::string_view kAdopted = ".adopted-by-";

// Whether ns.toml says so; false when there is none, or one whose bytes were not synced when the
// power went and which says nothing. data_corruption when it says something else.
Result<bool> BeginsWith(FileSystem* files, const std::string& path, const std::string& line) {
  const auto found = ReadWholeFile(files, path, kMaxTextBytes);
  if (found.status().code() == StatusCode::kNotFound) return false;
  DI_RETURN_IF_ERROR(found.status());
  const std::string_view content(reinterpret_cast<const char*>(found->data()), found->size());
  if (content.starts_with(line)) return true;
  if (content.find_first_not_of('\0') == std::string_view::npos) return false;
  return DataCorruption(path + " is of another namespace");
}

}  // namespace

Status FillRandom(std::span<uint8_t> bytes) {
  const ssize_t count = getrandom(bytes.data(), bytes.size(), 0);
  return count == static_cast<ssize_t>(bytes.size()) ? OkStatus()
                                                     : Unavailable("no random numbers");
}

std::string NamespaceFolder(const std::string& root, const Sha256Digest& namespace_id) {
  return root + "/v1/" + BlockKey{namespace_id}.Hex().substr(0, kNamespaceDigits);
}

bool IsNamespaceFolderName(std::string_view name) {
  return name.size() == kNamespaceDigits &&
         name.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

Status PrepareNamespace(FileSystem* files, const std::string& root,
                        const Sha256Digest& namespace_id, const std::string& text) {
  const std::string folder = NamespaceFolder(root, namespace_id);
  for (const std::string& path : {root, root + "/v1", folder}) {
    if (const auto made = files->MakeDirectory(path); !made.ok()) return made.status();
  }
  const std::string path = folder + "/ns.toml";
  const std::string first_line = fmt::format("namespace = \"{}\"\n", BlockKey{namespace_id}.Hex());
  DI_ASSIGN_OR_RETURN(const bool is_named, BeginsWith(files, path, first_line));
  if (is_named) return OkStatus();
  const std::string content = first_line + text;
  const Status written = ReplaceFile(
      files, path, std::as_bytes(std::span(content.data(), content.size())), OpenMode::kCreate);
  if (written.ok()) return OkStatus();
  // Another process that shares the root writes the same.
  const auto is_named_now = BeginsWith(files, path, first_line);
  return is_named_now.ok() && *is_named_now ? OkStatus() : written;
}

std::string EpochFolderName(const std::string& node, uint64_t epoch) {
  return fmt::format("{}-{:016x}", node, epoch);
}

std::optional<EpochFolder> ParseEpochFolderName(std::string_view name) {
  if (name.size() < kEpochDigits + 2) return std::nullopt;
  const size_t end = std::min(name.find(kAdopted), name.size());
  if (end < kEpochDigits + 2 || name[end - kEpochDigits - 1] != '-') return std::nullopt;
  EpochFolder folder;
  folder.name = name;
  folder.node = name.substr(0, end - kEpochDigits - 1);
  const std::string_view digits = name.substr(end - kEpochDigits, kEpochDigits);
  const auto [last, error] = std::from_chars(digits.begin(), digits.end(), folder.epoch, 16);
  if (error != std::errc() || last != digits.end()) return std::nullopt;
  folder.owner = end == name.size() ? name : name.substr(end + kAdopted.size());
  return folder;
}

std::string AdoptedFolderName(const EpochFolder& folder, const std::string& adopter) {
  return EpochFolderName(folder.node, folder.epoch) + std::string(kAdopted) + adopter;
}

bool IsStoreFile(std::string_view name) {
  return name == "index.log" || name == "lease" || name == "probe" ||
         (name.starts_with("touch") && name.ends_with(".log"));
}

Result<std::vector<EpochFolder>> ListEpochFolders(FileSystem* files,
                                                  const std::string& namespace_folder) {
  DI_ASSIGN_OR_RETURN(const auto names, files->List(namespace_folder));
  std::vector<EpochFolder> folders;
  for (const std::string& name : names) {
    if (auto folder = ParseEpochFolderName(name)) folders.push_back(*std::move(folder));
  }
  return folders;
}

Result<uint64_t> RandomEpoch() {
  std::array<uint8_t, sizeof(uint64_t)> bytes{};
  DI_RETURN_IF_ERROR(FillRandom(bytes));
  uint64_t epoch;
  std::memcpy(&epoch, bytes.data(), sizeof(epoch));
  return epoch;
}

}  // namespace deepinfer
