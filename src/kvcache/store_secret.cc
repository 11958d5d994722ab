#include "kvcache/store_secret.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/log.h"
#include "kvcache/segment_file.h"
#include "kvcache/store_folders.h"

namespace deepinfer {
namespace {

constexpr size_t kSecretBytes = StoreSecret().size();
constexpr int64_t kMostBytes = 65'536;
// Making a secret takes two syncs; a process that waits for another one gives up after two seconds.
constexpr int kLockTries = 100;
constexpr auto kLockPause = std::chrono::milliseconds(20);

using Content = std::vector<std::byte>;

// What the file holds; nothing when there is none.
Result<std::optional<Content>> ReadSecretFile(FileSystem* files, const std::string& path) {
  auto found = ReadWholeFile(files, path, kMostBytes);
  if (found.status().code() == StatusCode::kNotFound) return std::optional<Content>();
  DI_RETURN_IF_ERROR(found.status());
  if (found->size() > kSecretBytes) return DataCorruption(path + " is not 32 bytes");
  // It has no checksum, and a wrong one would name other tenants.
  if (const auto again = ReadWholeFile(files, path, kMostBytes); !again.ok() || *again != *found) {
    return Unavailable(path + " reads differently each time");
  }
  return std::optional(*std::move(found));
}

// Its name is there, but not all of its bytes: they were not synced when the power went.
bool IsTorn(const Content& content) {
  return content.size() < kSecretBytes ||
         std::ranges::all_of(content, [](std::byte b) { return b == std::byte{0}; });
}

bool IsWhole(const std::optional<Content>& content) { return content && !IsTorn(*content); }

Result<bool> HoldsSegments(FileSystem* files, const std::string& folder) {
  DI_ASSIGN_OR_RETURN(const auto names, files->List(folder));
  for (const std::string& name : names) {
    if (!IsNamespaceFolderName(name)) continue;
    const std::string space = folder + "/" + name;
    DI_ASSIGN_OR_RETURN(const auto epochs, ListEpochFolders(files, space));
    for (const EpochFolder& epoch : epochs) {
      DI_ASSIGN_OR_RETURN(const auto segments, files->List(space + "/" + epoch.name));
      if (std::ranges::any_of(segments, [](const std::string& segment) {
            return ParseSegmentFileName(segment).has_value();
          })) {
        return true;
      }
    }
  }
  return false;
}

Result<std::unique_ptr<FileLock>> WaitForLock(FileSystem* files, const std::string& path) {
  for (int tries = 1;; ++tries) {
    auto lock = files->Lock(path);
    if (lock.status().code() != StatusCode::kResourceExhausted || tries == kLockTries) return lock;
    std::this_thread::sleep_for(kLockPause);
  }
}

// Nobody can have stored or found a block with a torn secret, so without segments nothing is lost.
Status MayReplaceTorn(FileSystem* files, const std::string& folder, const std::string& path,
                      const Content& torn) {
  DI_ASSIGN_OR_RETURN(const bool holds_segments, HoldsSegments(files, folder));
  if (holds_segments) {
    return DataCorruption(fmt::format(
        "{} holds {} of {} bytes of the secret that the stored blocks depend on, as after a crash: "
        "put a copy of it back, or delete it to begin anew (the stored blocks are not found then, "
        "and expire)",
        path, torn.size(), kSecretBytes));
  }
  Log(LogLevel::kWarning, "kv.secret_replaced",
      {{"path", path},
       {"bytes", torn.size()},
       {"note",
        "it was torn and no block depends on it; tags of tenants in key files and quotas, "
        "if there are any, were derived from an older one"}});
  return OkStatus();
}

}  // namespace

Result<StoreSecret> RandomSecret() {
  StoreSecret secret{};
  DI_RETURN_IF_ERROR(FillRandom(secret));
  return secret;
}

Result<StoreSecret> LoadOrCreateSecret(FileSystem* files, const std::string& root) {
  const std::string folder = root + "/v1";
  for (const std::string& made : {root, folder}) {
    DI_RETURN_IF_ERROR(files->MakeDirectory(made).status());
  }
  const std::string path = folder + "/secret";
  DI_ASSIGN_OR_RETURN(auto content, ReadSecretFile(files, path));
  if (!IsWhole(content)) {
    DI_ASSIGN_OR_RETURN(const auto lock, WaitForLock(files, path + ".lock"));
    // Another process may have been faster.
    DI_ASSIGN_OR_RETURN(content, ReadSecretFile(files, path));
    if (!IsWhole(content)) {
      if (content) DI_RETURN_IF_ERROR(MayReplaceTorn(files, folder, path, *content));
      DI_ASSIGN_OR_RETURN(const StoreSecret made, RandomSecret());
      DI_RETURN_IF_ERROR(
          ReplaceFile(files, path, std::as_bytes(std::span(made)), OpenMode::kCreatePrivate));
      // Where hosts do not see each other's locks, what is there last counts for all.
      DI_ASSIGN_OR_RETURN(content, ReadSecretFile(files, path));
    }
  }
  if (!IsWhole(content)) return Unavailable(path + " changes while it is read");
  StoreSecret secret{};
  std::memcpy(secret.data(), content->data(), secret.size());
  return secret;
}

}  // namespace deepinfer
