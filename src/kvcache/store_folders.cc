#include "kvcache/store_folders.h"

#include <fmt/core.h>
#include <sys/random.h>

#include <algorithm>
#include <charconv>

#include "kvcache/keys.h"

namespace deepinfer {
namespace {

constexpr int64_t kMaxTextBytes = 65'536;
constexpr size_t kEpochDigits = 16;
constexpr std::string_view kAdopted = ".adopted-by-";

Status WriteNewFile(FileSystem* files, const std::string& path, OpenMode mode,
                    std::span<const std::byte> bytes) {
  DI_ASSIGN_OR_RETURN(const auto file, files->Open(path, mode, false));
  DI_RETURN_IF_ERROR(file->WriteAt(bytes, 0));
  return file->SyncData();
}

}  // namespace

Status FillRandom(std::span<uint8_t> bytes) {
  const ssize_t count = getrandom(bytes.data(), bytes.size(), 0);
  return count == static_cast<ssize_t>(bytes.size()) ? OkStatus()
                                                     : Unavailable("no random numbers");
}

std::string NamespaceFolder(const std::string& root, const Sha256Digest& namespace_id) {
  return root + "/v1/" + BlockKey{namespace_id}.Hex().substr(0, 16);
}

Status PrepareNamespace(FileSystem* files, const std::string& root,
                        const Sha256Digest& namespace_id, const std::string& text) {
  const std::string folder = NamespaceFolder(root, namespace_id);
  for (const std::string& path : {root, root + "/v1", folder}) {
    if (const auto made = files->MakeDirectory(path); !made.ok()) return made.status();
  }
  const std::string first_line = fmt::format("namespace = \"{}\"\n", BlockKey{namespace_id}.Hex());
  const std::string path = folder + "/ns.toml";
  auto found = ReadWholeFile(files, path, kMaxTextBytes);
  // An empty file is one whose writer died: it says nothing, so it is written again.
  if (found.status().code() == StatusCode::kNotFound || (found.ok() && found->empty())) {
    const std::string content = first_line + text;
    return WriteNewFile(files, path, OpenMode::kCreateOrOpen,
                        std::as_bytes(std::span(content.data(), content.size())));
  }
  DI_RETURN_IF_ERROR(found.status());
  const std::string_view content(reinterpret_cast<const char*>(found->data()), found->size());
  if (!content.starts_with(first_line)) {
    return DataCorruption(path + " is of another namespace");
  }
  return OkStatus();
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

Result<std::array<uint8_t, 32>> RandomSecret() {
  std::array<uint8_t, 32> secret{};
  DI_RETURN_IF_ERROR(FillRandom(secret));
  return secret;
}

Result<std::array<uint8_t, 32>> LoadOrCreateSecret(FileSystem* files, const std::string& root) {
  for (const std::string& path : {root, root + "/v1"}) {
    if (const auto made = files->MakeDirectory(path); !made.ok()) return made.status();
  }
  const std::string path = root + "/v1/secret";
  std::array<uint8_t, 32> secret{};
  auto found = ReadWholeFile(files, path, kMaxTextBytes);
  if (found.status().code() == StatusCode::kNotFound) {
    DI_ASSIGN_OR_RETURN(secret, RandomSecret());
    DI_RETURN_IF_ERROR(
        WriteNewFile(files, path, OpenMode::kCreatePrivate, std::as_bytes(std::span(secret))));
    return secret;
  }
  DI_RETURN_IF_ERROR(found.status());
  if (found->size() != secret.size()) return DataCorruption(path + " is not 32 bytes");
  // It has no checksum, and a wrong one would name other tenants.
  if (const auto again = ReadWholeFile(files, path, kMaxTextBytes);
      !again.ok() || *again != *found) {
    return Unavailable(path + " reads differently each time");
  }
  std::memcpy(secret.data(), found->data(), secret.size());
  return secret;
}

}  // namespace deepinfer
