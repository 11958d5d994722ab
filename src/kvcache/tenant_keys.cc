#include "kvcache/tenant_keys.h"

#include <fmt/core.h>

#include <charconv>
#include <sstream>
#include <utility>
#include <vector>

#include "kvcache/keys.h"
#include "kvcache/store_folders.h"
#include "kvcache/store_inspector.h"

namespace deepinfer {
namespace {

constexpr int64_t kMaxKeyFileBytes = int64_t{64} << 20;
constexpr std::string_view kDestroyed = "destroyed";

Result<std::map<uint64_t, std::optional<TenantKey>>> ParseKeyLines(const std::string& text,
                                                                   const std::string& path,
                                                                   std::string* comments) {
  std::map<uint64_t, std::optional<TenantKey>> keys;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.empty() || line[0] == '#') {
      *comments += line + "\n";
      continue;
    }
    std::istringstream words(line);
    std::string tag_text;
    std::string key_text;
    std::string more;
    words >> tag_text >> key_text >> more;
    uint64_t tag = 0;
    const char* end = tag_text.data() + tag_text.size();
    const auto parsed = std::from_chars(tag_text.data(), end, tag, 16);
    const auto key = ParseKey(key_text);
    const bool destroyed = key_text == kDestroyed;
    if (tag_text.size() != 16 || parsed.ec != std::errc() || parsed.ptr != end ||
        (!key.ok() && !destroyed) || !more.empty() || keys.contains(tag)) {
      // The text itself may be a key: it is not repeated.
      return DataCorruption(fmt::format("{}: line {} is not 'tag key'", path, number));
    }
    keys[tag] = destroyed ? std::nullopt : std::optional<TenantKey>(key->bytes);
  }
  return keys;
}

}  // namespace

Result<std::unique_ptr<TenantKeys>> TenantKeys::Open(FileSystem* files, const std::string& path) {
  std::unique_ptr<TenantKeys> keys(new TenantKeys(files, path));
  DI_RETURN_IF_ERROR(keys->Reload());
  return keys;
}

Status TenantKeys::Reload() {
  if (path_.empty()) return OkStatus();
  const auto info = files_->Stat(path_);
  if (info.status().code() == StatusCode::kNotFound) return OkStatus();
  DI_RETURN_IF_ERROR(info.status());
  const std::lock_guard lock(mutex_);
  return info->modified_ns == modified_ns_ && !keys_.empty() ? OkStatus() : Load();
}

Status TenantKeys::Load() {
  const auto bytes = ReadWholeFile(files_, path_, kMaxKeyFileBytes);
  if (bytes.status().code() == StatusCode::kNotFound) return OkStatus();
  DI_RETURN_IF_ERROR(bytes.status());
  DI_ASSIGN_OR_RETURN(const FileInfo info, files_->Stat(path_));
  if ((info.permissions & 0077) != 0) {
    return InvalidRequest(path_ + ": keys must be readable by their owner only (chmod 600)");
  }
  std::string comments;
  DI_ASSIGN_OR_RETURN(
      auto keys, ParseKeyLines({reinterpret_cast<const char*>(bytes->data()), bytes->size()}, path_,
                               &comments));
  keys_ = std::move(keys);
  comments_ = std::move(comments);
  modified_ns_ = info.modified_ns;
  return OkStatus();
}

TenantSecrecy TenantKeys::SecrecyOf(uint64_t tenant_tag) const {
  const std::lock_guard lock(mutex_);
  const auto it = keys_.find(tenant_tag);
  if (it == keys_.end()) return TenantSecrecy::kPlain;
  return it->second ? TenantSecrecy::kEncrypted : TenantSecrecy::kDestroyed;
}

std::optional<TenantKey> TenantKeys::Find(uint64_t tenant_tag) const {
  const std::lock_guard lock(mutex_);
  const auto it = keys_.find(tenant_tag);
  return it == keys_.end() ? std::nullopt : it->second;
}

Status TenantKeys::Create(uint64_t tenant_tag) {
  if (path_.empty()) return InvalidRequest("there is no key file");
  TenantKey key{};
  DI_RETURN_IF_ERROR(FillRandom(key));
  const std::lock_guard lock(mutex_);
  DI_RETURN_IF_ERROR(Load());
  std::optional<TenantKey>& entry = keys_[tenant_tag];
  if (entry) return InvalidRequest("the tenant has a key");
  entry = key;
  return Write();
}

Result<bool> TenantKeys::Destroy(uint64_t tenant_tag) {
  if (path_.empty()) return false;
  const std::lock_guard lock(mutex_);
  DI_RETURN_IF_ERROR(Load());
  const auto it = keys_.find(tenant_tag);
  if (it == keys_.end() || !it->second) return false;
  it->second->fill(0);
  it->second = std::nullopt;
  DI_RETURN_IF_ERROR(Write());
  return true;
}

// The old bytes are overwritten before their file goes, as far as the file system lets anybody.
Status TenantKeys::Write() {
  std::string text = comments_;
  for (const auto& [tag, key] : keys_) {
    text += fmt::format("{:016x} {}\n", tag, key ? BlockKey{*key}.Hex() : std::string(kDestroyed));
  }
  const auto old = files_->Open(path_, OpenMode::kReadWrite, false);
  DI_RETURN_IF_ERROR(
      ReplaceFile(files_, path_, std::as_bytes(std::span(text)), OpenMode::kCreatePrivate));
  if (old.ok()) {
    if (const auto size = (*old)->Size(); size.ok() && *size > 0) {
      const std::vector<std::byte> zeros(static_cast<size_t>(*size));
      if ((*old)->WriteAt(zeros, 0).ok()) (void)(*old)->SyncData();
    }
  }
  return OkStatus();
}

}  // namespace deepinfer
