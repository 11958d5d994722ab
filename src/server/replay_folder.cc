#include "server/replay_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <span>
#include <utility>

#include "base/crc32c.h"
#include "base/log.h"
#include "base/thread_name.h"
#include "base/utc_clock.h"

namespace deepinfer {
namespace fs = std::filesystem;

namespace {

constexpr char kMagic[8] = {'D', 'I', 'T', 'U', 'R', 'N', '1', '\n'};
constexpr size_t kNameDigits = 32;
constexpr std::chrono::hours kSweepInterval{1};
// Half-written files of processes that died.
constexpr int64_t kTemporaryAgeS = 3600;
constexpr const char* kTemporary = ".part";
constexpr const char* kErased = ".erased";
// A turn is no longer than a context; a longer file is none of ours.
constexpr uint64_t kMostTokens = uint64_t{1} << 24;

struct FileHeader {
  char magic[8];
  uint32_t crc;  // of everything behind it
  uint32_t num_ids;
  int64_t deadline_s;
};
static_assert(sizeof(FileHeader) == 24);

ReplayFolderOptions Completed(ReplayFolderOptions options) {
  if (!options.utc_now_s) options.utc_now_s = UtcNow<std::chrono::seconds>;
  return options;
}

std::string TenantFolder(const std::string& folder, uint64_t tenant_tag) {
  return fmt::format("{}/{:016x}", folder, tenant_tag);
}

std::string PathOf(const std::string& folder, const ReplayOwner& owner, std::string_view call_id) {
  std::string key(reinterpret_cast<const char*>(owner.scope.data()), owner.scope.size());
  key.append(call_id);
  return TenantFolder(folder, owner.tenant_tag) + "/" + Sha256Hex(key).substr(0, kNameDigits);
}

uint32_t CrcOf(const std::string& bytes) {
  const std::span<const char> rest(bytes.data() + offsetof(FileHeader, num_ids),
                                   bytes.size() - offsetof(FileHeader, num_ids));
  return Crc32c(std::as_bytes(rest));
}

std::string Encode(const std::vector<int32_t>& ids, int64_t deadline_s) {
  FileHeader header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.num_ids = static_cast<uint32_t>(ids.size());
  header.deadline_s = deadline_s;
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  bytes.append(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t));
  header.crc = CrcOf(bytes);
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes;
}

std::optional<KeptTurn> Decode(const std::string& bytes, int64_t now_s) {
  FileHeader header{};
  if (bytes.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, bytes.data(), sizeof header);
  const bool is_whole = std::memcmp(header.magic, kMagic, sizeof kMagic) == 0 &&
                        header.num_ids <= kMostTokens &&
                        bytes.size() == sizeof header + header.num_ids * sizeof(int32_t) &&
                        header.crc == CrcOf(bytes);
  if (!is_whole || now_s >= header.deadline_s) return std::nullopt;
  std::vector<int32_t> ids(header.num_ids);
  std::memcpy(ids.data(), bytes.data() + sizeof header, bytes.size() - sizeof header);
  return KeptTurn{std::move(ids), header.deadline_s};
}

int64_t ModifiedAtS(const std::string& path) {
  struct stat state {};
  return stat(path.c_str(), &state) == 0 ? int64_t{state.st_mtim.tv_sec} : 0;
}

// All of it or false; readable by its owner only.
bool WriteFile(const std::string& path, const std::string& bytes) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return false;
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t size = write(fd, bytes.data() + done, bytes.size() - done);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) break;
    done += static_cast<size_t>(size);
  }
  return close(fd) == 0 && done == bytes.size();
}

}  // namespace

Result<std::unique_ptr<ReplayFolder>> ReplayFolder::Open(ReplayFolderOptions options) {
  std::error_code error;
  fs::create_directories(options.folder, error);
  if (!error) fs::permissions(options.folder, fs::perms::owner_all, error);
  if (error) return Unavailable(options.folder + ": " + error.message());
  if (access(options.folder.c_str(), R_OK | W_OK | X_OK) != 0) {
    return Unavailable(options.folder + ": " + std::strerror(errno));
  }
  return std::unique_ptr<ReplayFolder>(new ReplayFolder(Completed(std::move(options))));
}

ReplayFolder::ReplayFolder(ReplayFolderOptions options)
    : options_(std::move(options)), thread_([this] { Loop(); }) {}

ReplayFolder::~ReplayFolder() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ReplayFolder::Keep(const ReplayOwner& owner, const std::vector<std::string>& call_ids,
                        std::shared_ptr<const std::vector<int32_t>> ids, int64_t lifetime_s) {
  Turn turn{owner, call_ids, std::move(ids), 0, 0};
  const int64_t lives_s =
      lifetime_s > 0 ? std::min(lifetime_s, options_.max_age_s) : options_.max_age_s;
  turn.deadline_s = NowS() + lives_s;
  turn.num_bytes = turn.ids->size() * sizeof(int32_t);
  {
    const std::lock_guard lock(mutex_);
    if (queued_bytes_ + turn.num_bytes > options_.max_queued_bytes) {
      num_dropped_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    queued_bytes_ += turn.num_bytes;
    queue_.push_back(std::move(turn));
  }
  changed_.notify_all();
}

std::optional<KeptTurn> ReplayFolder::Find(const ReplayOwner& owner,
                                           std::string_view call_id) const {
  std::ifstream file(PathOf(options_.folder, owner, call_id), std::ios::binary);
  if (!file) return std::nullopt;
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  return Decode(bytes, NowS());
}

int64_t ReplayFolder::ErasedAt(uint64_t tenant_tag) const {
  return ModifiedAtS(TenantFolder(options_.folder, tenant_tag) + kErased);
}

void ReplayFolder::Flush() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return queue_.empty() && !writing_; });
}

void ReplayFolder::Loop() {
  NameThread("replay");
  auto next_sweep = std::chrono::steady_clock::now();
  size_t written = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    const auto now = std::chrono::steady_clock::now();
    if (now >= next_sweep || written > options_.max_files / 8) {
      lock.unlock();
      Sweep();
      lock.lock();
      written = 0;
      next_sweep = now + kSweepInterval;
    }
    changed_.wait_until(lock, next_sweep, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) {
      if (stopping_) return;
      continue;
    }
    const Turn turn = std::move(queue_.front());
    queue_.pop_front();
    queued_bytes_ -= turn.num_bytes;
    writing_ = true;
    lock.unlock();
    if (!Write(turn) && num_dropped_.fetch_add(1, std::memory_order_relaxed) == 0) {
      Log(LogLevel::kWarning, "replay.not_kept", {{"folder", options_.folder}});
    }
    written += turn.call_ids.size();
    lock.lock();
    writing_ = false;
    changed_.notify_all();
  }
}

bool ReplayFolder::Write(const Turn& turn) const {
  std::error_code error;
  const std::string tenant = TenantFolder(options_.folder, turn.owner.tenant_tag);
  if (fs::create_directory(tenant, error)) {
    fs::permissions(tenant, fs::perms::owner_all, error);
  }
  const std::string bytes = Encode(*turn.ids, turn.deadline_s);
  for (const std::string& call_id : turn.call_ids) {
    const std::string path = PathOf(options_.folder, turn.owner, call_id);
    const std::string part = fmt::format("{}-{:08x}{}", path, std::random_device()(), kTemporary);
    if (WriteFile(part, bytes) && rename(part.c_str(), path.c_str()) == 0) continue;
    fs::remove(part, error);
    return false;
  }
  return true;
}

void ReplayFolder::Sweep() const {
  const int64_t now_s = NowS();
  std::vector<std::pair<int64_t, std::string>> files;  // by the time of their writing
  std::error_code error;
  for (const fs::directory_entry& tenant : fs::directory_iterator(options_.folder, error)) {
    const std::string name = tenant.path();
    if (name.ends_with(kErased) && now_s - ModifiedAtS(name) > 2 * options_.max_age_s) {
      fs::remove(name, error);
    }
    if (!tenant.is_directory(error)) continue;
    std::error_code inner;
    for (const fs::directory_entry& file : fs::directory_iterator(tenant, inner)) {
      const std::string path = file.path();
      const int64_t age_s = now_s - ModifiedAtS(path);
      const int64_t most_s = path.ends_with(kTemporary) ? kTemporaryAgeS : options_.max_age_s;
      if (age_s > most_s) {
        fs::remove(path, inner);
      } else {
        files.emplace_back(now_s - age_s, path);
      }
    }
  }
  if (files.size() <= options_.max_files) return;
  const auto keep_from = files.end() - static_cast<std::ptrdiff_t>(options_.max_files);
  std::nth_element(files.begin(), keep_from, files.end());
  for (auto old = files.begin(); old != keep_from; ++old) fs::remove(old->second, error);
}

Result<int64_t> EraseKeptTurns(const std::string& folder, uint64_t tenant_tag) {
  std::error_code error;
  if (!fs::exists(folder, error)) return 0;
  const std::string tenant = TenantFolder(folder, tenant_tag);
  // First the word to the servers, so that none writes back what it has in memory.
  if (!WriteFile(tenant + kErased, "")) {
    return Unavailable(tenant + kErased + ": " + std::strerror(errno));
  }
  int64_t num_files = 0;
  for (const fs::directory_entry& file : fs::directory_iterator(tenant, error)) {
    num_files += file.path().string().ends_with(kTemporary) ? 0 : 1;
  }
  fs::remove_all(tenant, error);
  if (error) return Unavailable(tenant + ": " + error.message());
  return num_files;
}

}  // namespace deepinfer
