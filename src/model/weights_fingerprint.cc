#include "model/weights_fingerprint.h"

#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "tensor/dtype.h"
#include "tensor/mapped_file.h"

namespace deepinfer {

namespace {

// What changes when the bytes of a file change; the change time cannot be set by a program.
Result<std::string> FileState(const std::string& path) {
  struct stat s {};
  if (stat(path.c_str(), &s) != 0) return NotFound("cannot look at " + path);
  return fmt::format("{} {} {}.{:09} {}.{:09} {}", s.st_size, s.st_ino, s.st_mtim.tv_sec,
                     s.st_mtim.tv_nsec, s.st_ctim.tv_sec, s.st_ctim.tv_nsec,
                     std::filesystem::absolute(path).string());
}

Result<std::string> FileDigest(const std::string& path) {
  DI_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  file.Advise(MapAdvice::kSequential);
  // What this reads stays in the file cache for the model.
  file.Advise(MapAdvice::kHugePages);
  const std::span<const std::byte> bytes = file.bytes();
  return Sha256Hex({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

// State to digest, one a line: the digest, a space, the state.
class DigestNotes {
 public:
  explicit DigestNotes(std::string path) : path_(std::move(path)) {
    std::ifstream in(path_);
    for (std::string line; std::getline(in, line);) {
      const size_t split = line.find(' ');
      if (split == kHexDigits) known_[line.substr(split + 1)] = line.substr(0, split);
    }
  }

  Result<std::string> DigestOf(const std::string& file) {
    DI_ASSIGN_OR_RETURN(const std::string state, FileState(file));
    auto found = known_.find(state);
    if (found == known_.end()) {
      DI_ASSIGN_OR_RETURN(std::string digest, FileDigest(file));
      found = known_.emplace(state, std::move(digest)).first;
      changed_ = true;
    }
    return found->second;
  }

  // Notes of files that have changed since are left out.
  void Save() const {
    if (path_.empty() || !changed_) return;
    const std::string fresh = fmt::format("{}.{}", path_, getpid());
    {
      std::ofstream out(fresh);
      for (const auto& [state, digest] : known_) {
        if (Exists(state)) out << digest << ' ' << state << '\n';
      }
    }
    std::error_code ignored;
    std::filesystem::rename(fresh, path_, ignored);
  }

 private:
  static constexpr size_t kHexDigits = 64;

  static bool Exists(const std::string& state) {
    const size_t path = state.find('/');
    if (path == std::string::npos) return false;
    const auto now = FileState(state.substr(path));
    return now.ok() && *now == state;
  }

  std::string path_;
  std::map<std::string, std::string> known_;
  bool changed_ = false;
};

}  // namespace

Result<Sha256Digest> WeightsFingerprint(const Checkpoint& checkpoint,
                                        const std::string& cache_file) {
  DigestNotes notes(cache_file);
  std::vector<std::string> shards;
  for (size_t i = 0; i < checkpoint.num_shards(); ++i) {
    DI_ASSIGN_OR_RETURN(std::string digest, notes.DigestOf(checkpoint.shard_path(i)));
    shards.push_back(std::move(digest));
  }
  notes.Save();
  std::string list;
  for (size_t i = 0; i < checkpoint.num_tensors(); ++i) {
    const std::string& name = checkpoint.name(i);
    const TensorView& view = checkpoint.view(i);
    // The length in front keeps two lists from spelling one text.
    list += fmt::format("{} {} {}", name.size(), name, DTypeName(view.dtype));
    list += view.shape.ToString() + " " + shards[static_cast<size_t>(checkpoint.ShardOf(name))];
  }
  return Sha256(list);
}

}  // namespace deepinfer
