#include "cli/kv_flags.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "base/log.h"
#include "cli/io.h"
#include "engine/kv_namespace.h"
#include "kvcache/store_secret.h"
#include "model/weights_fingerprint.h"

namespace deepinfer {

namespace fs = std::filesystem;

namespace {

constexpr const char* kNoStore = "none";
constexpr int64_t kMostMb = int64_t{1} << 40;
constexpr int64_t kMostHours = 24 * 3650;
// Without a store digests are only told to clients, and nothing remembers them: a second or two.
constexpr int64_t kQuicklyDigestedBytes = int64_t{2} << 30;

// A name in the names of folders.
std::string CheckNodeName(const std::string& name) {
  const bool ok = !name.empty() && name.size() < 64 && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  });
  return ok ? "" : "must be letters, digits, '-', '_' and '.', at most 63";
}

std::string HostName() {
  char name[64] = {};
  if (gethostname(name, sizeof(name) - 1) != 0 || !CheckNodeName(name).empty()) return "local";
  return name;
}

Result<ModelFiles> DigestModelFiles(const Model& model, const fs::path& model_dir,
                                    const std::string& cache_file) {
  ModelFiles files;
  DI_ASSIGN_OR_RETURN(files.weights, WeightsFingerprint(model.checkpoint(), cache_file));
  DI_ASSIGN_OR_RETURN(const std::string tokenizer, ReadTextFile(model_dir / "tokenizer.json"));
  files.tokenizer = Sha256(tokenizer);
  DI_ASSIGN_OR_RETURN(const std::string config, ReadTextFile(model_dir / "config.json"));
  files.config = Sha256(config);
  return files;
}

}  // namespace

std::string ReplayFolderIn(const std::string& dir) { return dir + "/replay"; }

Result<TenantQuotas> ParseQuotas(const std::vector<std::string>& texts,
                                 std::span<const uint8_t> secret) {
  TenantQuotas quotas;
  for (const std::string& text : texts) {
    const auto fault = [&](std::string_view what) {
      return InvalidRequest("--kv-quota " + text + ": " + std::string(what));
    };
    const size_t equals = text.rfind('=');
    if (equals == std::string::npos || equals == 0) return fault("is not TENANT[:CLASS]=MIB");
    int64_t mib = 0;
    const char* end = text.data() + text.size();
    const auto [last, error] = std::from_chars(text.data() + equals + 1, end, mib);
    if (error != std::errc() || last != end || mib < 1 || mib > kMostMb) {
      return fault("the space after = is a whole number of MiB above 0");
    }
    std::string tenant = text.substr(0, equals);
    std::optional<RetentionClass> retention;
    if (const size_t colon = tenant.rfind(':'); colon != std::string::npos) {
      retention = ParseRequestClass(std::string_view(tenant).substr(colon + 1));
      if (!retention) return fault("the class after : is batch, agent or chat");
      tenant.resize(colon);
    }
    if (tenant.empty()) return fault("names no tenant before the class");
    TenantQuota& quota = tenant == "*" ? quotas.each : quotas.by_tag[TenantTag(secret, tenant)];
    (retention ? quota.class_bytes[static_cast<size_t>(*retention)] : quota.all_bytes) = mib << 20;
  }
  return quotas;
}

std::string UserKvDir() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache == '/') {
    return fs::path(cache) / "deepinfer" / "kv";
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/') {
    return fs::path(home) / ".cache" / "deepinfer" / "kv";
  }
  return kNoStore;
}

void KvFlags::Register(CLI::App* c, const std::string& default_dir) {
  default_dir_ = default_dir;
  c->add_option("--kv-dir,--kv-disk-dir", dir_,
                default_dir == kNoStore
                    ? "Folder of the persistent cache; default: none"
                    : "Folder of the persistent cache, or none; default: deepinfer/kv in the "
                      "user's cache folder");
  c->add_option("--kv-space-mb,--kv-disk-space-mb", space_mb_, "Space of the persistent cache, MiB")
      ->check(CLI::Range(int64_t{1}, kMostMb))
      ->capture_default_str();
  c->add_flag("--kv-shared", shared_,
              "The folder is shared with other servers, also on other hosts");
  c->add_option("--kv-when-in-use", when_in_use_,
                "What to do with the folder of another server that does not share it: refuse, or "
                "read what is there and write nothing")
      ->check(CLI::IsMember({"refuse", "read-only"}))
      ->capture_default_str();
  c->add_option("--kv-node", node_, "Name of this server in a shared folder; default: the host's")
      ->check(CLI::Validator(CheckNodeName, "NAME"));
  c->add_option("--kv-tenant-quota-mb", tenant_quota_mb_,
                "Space of one tenant in it, MiB; 0 = no limit")
      ->check(CLI::Range(int64_t{0}, kMostMb))
      ->capture_default_str();
  c->add_option(
       "--kv-quota", quotas_,
       "Space of a tenant in one class or in all, TENANT[:CLASS]=MIB, several times; TENANT "
       "is the namespace of keys, or * for every tenant")
      ->check(CLI::Validator(
          [](const std::string& text) {
            const auto parsed = ParseQuotas({text}, {});
            return parsed.ok() ? std::string() : parsed.status().message();
          },
          "TENANT[:CLASS]=MIB"));
  c->add_option("--kv-key-file", key_file_,
                "Keys of tenants whose blocks are stored encrypted (deepinfer kv key)");
  c->add_option("--kv-writes-per-day", writes_per_day_,
                "Times the space may be written per day to save the drive; 0 = no limit")
      ->check(CLI::Range(0.0, 1000.0))
      ->capture_default_str();
  c->add_option("--kv-class-default", class_default_,
                "Retention class of requests that name no lifetime")
      ->check(CLI::IsMember({"batch", "agent", "chat"}))
      ->capture_default_str();
  const auto hours = [&](const char* name, int64_t* value, const char* help) {
    c->add_option(name, *value, help)
        ->check(CLI::Range(int64_t{1}, kMostHours))
        ->capture_default_str();
  };
  hours("--kv-ttl-batch-h", &ttl_batch_h_, "Hours that blocks of class batch live after a use");
  hours("--kv-ttl-agent-h", &ttl_agent_h_, "The same for class agent");
  hours("--kv-ttl-chat-h", &ttl_chat_h_, "The same for class chat");
  c->add_option("--kv-write-queue-mb", write_queue_mb_,
                "Memory of blocks that wait to be written, MiB; beyond it writes are dropped")
      ->check(CLI::Range(int64_t{1}, kMostMb))
      ->capture_default_str();
  c->add_option("--kv-group-commit-ms", group_commit_ms_, "Longest time a crash may lose")
      ->check(CLI::Range(int64_t{1}, int64_t{3'600'000}))
      ->capture_default_str();
  c->add_option("--kv-group-commit-mb", group_commit_mb_, "Most MiB a crash may lose")
      ->check(CLI::Range(int64_t{1}, kMostMb))
      ->capture_default_str();
  c->add_option("--kv-io-threads", io_threads_, "Reading threads where io_uring is not to be had")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  c->add_option("--kv-io-depth", io_depth_, "Reads in flight with io_uring")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  c->add_option("--kv-direct-io", direct_io_, "auto: past the page cache where possible; off")
      ->check(CLI::IsMember({"auto", "off"}))
      ->capture_default_str();
}

RetentionClass KvFlags::default_class() const {
  return ParseRequestClass(class_default_).value_or(RetentionClass::kChat);
}

Result<std::unique_ptr<KvCache>> KvFlags::OpenIn(const std::string& dir, const Model& model,
                                                 const fs::path& model_dir,
                                                 const Clock* clock) const {
  std::error_code error;
  fs::create_directories(dir, error);
  if (error) return Unavailable("cannot make the folder " + dir + ": " + error.message());
  auto cache = std::make_unique<KvCache>();
  cache->files = MakePosixFileSystem();
  DI_ASSIGN_OR_RETURN(cache->secret, LoadOrCreateSecret(cache->files.get(), dir));
  DI_ASSIGN_OR_RETURN(const ModelFiles files,
                      DigestModelFiles(model, model_dir, dir + "/v1/file-digests"));
  cache->weights_hash = BlockKey{files.weights}.Hex();
  const KvNamespace space = MakeKvNamespace(model, files);
  KvStoreOptions o;
  o.dir = dir;
  o.namespace_id = space.Id();
  o.namespace_text = DescribeNamespace(space);
  o.layout = MakeBlockLayout(model.layout());
  o.shared = shared_;
  o.read_only_when_in_use = when_in_use_ == "read-only";
  if (shared_) o.node = node_.empty() ? HostName() : node_;
  o.space_bytes = space_mb_ << 20;
  DI_ASSIGN_OR_RETURN(o.quotas, ParseQuotas(quotas_, cache->secret));
  if (tenant_quota_mb_ > 0) o.quotas.each.all_bytes = tenant_quota_mb_ << 20;
  // Without it every tenant's blocks would be stored in the clear.
  if (!key_file_.empty() && !fs::exists(key_file_, error)) {
    return InvalidRequest("--kv-key-file " + key_file_ +
                          " is not there; deepinfer kv key makes it");
  }
  o.key_file = key_file_;
  o.writes_per_day = writes_per_day_;
  o.write_queue_bytes = write_queue_mb_ << 20;
  o.group_commit_us = group_commit_ms_ * 1000;
  o.group_commit_bytes = group_commit_mb_ << 20;
  for (size_t i = 0; i < kNumRetentionClasses; ++i) o.retention[i].ttl_hours = ttl_hours()[i];
  o.io_threads = io_threads_;
  o.io_depth = io_depth_;
  o.direct_io = direct_io_ == "auto";
  DI_ASSIGN_OR_RETURN(cache->store,
                      KvStore::Open(o, cache->files.get(), clock, &cache->wall_clock));
  if (!cache->store->read_only()) cache->replay_folder = KeptTurnsIn(dir);
  Log(LogLevel::kInfo, "kv.opened",
      {{"dir", dir},
       {"namespace", BlockKey{o.namespace_id}.Hex().substr(0, 16)},
       {"node", o.node},
       {"shared", shared_},
       {"read_only", cache->store->read_only()},
       {"space_mb", space_mb_},
       {"block_bytes", o.layout.record_bytes()},
       {"reads", cache->store->Stats().read_backend}});
  return cache;
}

std::string KvFlags::KeptTurnsIn(const std::string& dir) const {
  // They would lie there in plain text, beside blocks that are encrypted.
  return key_file_.empty() ? ReplayFolderIn(dir) : std::string();
}

Result<KvIdentity> KvFlags::Identity() const {
  KvIdentity identity;
  if (dir_.empty() || dir_ == kNoStore) {
    DI_ASSIGN_OR_RETURN(identity.secret, RandomSecret());
    return identity;
  }
  const std::string dir = fs::absolute(dir_).string();
  std::error_code error;
  fs::create_directories(dir, error);
  if (error) return Unavailable("cannot make the folder " + dir + ": " + error.message());
  const std::unique_ptr<FileSystem> files = MakePosixFileSystem();
  DI_ASSIGN_OR_RETURN(identity.secret, LoadOrCreateSecret(files.get(), dir));
  identity.replay_folder = KeptTurnsIn(dir);
  return identity;
}

Result<std::unique_ptr<KvCache>> KvFlags::Open(const Model& model, const fs::path& model_dir,
                                               const Clock* clock) const {
  const bool is_named = !dir_.empty();
  std::string dir = is_named ? dir_ : default_dir_;
  if (dir.empty()) dir = UserKvDir();
  if (dir != kNoStore) {
    auto cache = OpenIn(fs::absolute(dir).string(), model, model_dir, clock);
    if (cache.ok()) return cache;
    if (is_named && cache.status().code() == StatusCode::kResourceExhausted) {
      return ResourceExhausted("--kv-dir " + dir + " is in use by another process: " +
                               cache.status().message() + "; see --kv-shared and --kv-when-in-use");
    }
    if (is_named) return cache.status().Annotate("--kv-dir " + dir);
    Log(LogLevel::kWarning, "kv.without_store", {{"dir", dir}, {"status", cache.status()}});
  }
  auto cache = std::make_unique<KvCache>();
  DI_ASSIGN_OR_RETURN(cache->secret, RandomSecret());
  if (model.checkpoint().total_bytes() <= kQuicklyDigestedBytes) {
    DI_ASSIGN_OR_RETURN(const Sha256Digest weights, WeightsFingerprint(model.checkpoint(), ""));
    cache->weights_hash = BlockKey{weights}.Hex();
  }
  return cache;
}

}  // namespace deepinfer
