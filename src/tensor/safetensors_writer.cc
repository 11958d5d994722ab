#include "tensor/safetensors_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json/serialize.hpp>
#include <boost/json/string.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "tensor/json_events.h"
#include "tensor/safetensors_header.h"

namespace deepinfer {
namespace {

constexpr size_t kHeaderAlignment = 8;

std::string JsonString(std::string_view text) {
  return boost::json::serialize(boost::json::string(boost::json::string_view(text)));
}

// Order in the file: by falling element size, which keeps every start aligned, then by name.
std::vector<const NamedTensor*> FileOrder(std::span<const NamedTensor> tensors) {
  std::vector<const NamedTensor*> order;
  order.reserve(tensors.size());
  for (const NamedTensor& tensor : tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const NamedTensor* a, const NamedTensor* b) {
    const int bits_a = DTypeBits(a->view.dtype);
    const int bits_b = DTypeBits(b->view.dtype);
    return bits_a != bits_b ? bits_a > bits_b : a->name < b->name;
  });
  return order;
}

std::string HeaderJson(const std::vector<const NamedTensor*>& order,
                       const std::map<std::string, std::string>& metadata) {
  std::string json = "{";
  if (!metadata.empty()) {
    json += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      json +=
          fmt::format("{}{}:{}", json.back() == '{' ? "" : ",", JsonString(key), JsonString(value));
    }
    json += "}";
  }
  uint64_t begin = 0;
  for (const NamedTensor* tensor : order) {
    const TensorView& view = tensor->view;
    const uint64_t end = begin + view.size_bytes;
    json += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}",
                        json.back() == '{' ? "" : ",", JsonString(tensor->name),
                        DTypeName(view.dtype), view.shape.ToString(), begin, end);
    begin = end;
  }
  json += "}";
  json.resize((json.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');
  return json;
}

// A temporary file beside its target; removed unless it was renamed over it.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string target)
      : target_(std::move(target)), path_(target_ + ".tmp.XXXXXX") {}
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (fd_ < 0) return;
    close(fd_);
    if (!renamed_) unlink(path_.c_str());
  }

  Status Create() {
    fd_ = mkostemp(path_.data(), O_CLOEXEC);
    return fd_ < 0 ? Failure("create a temporary file beside it") : OkStatus();
  }

  Status Write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t written = write(fd_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return Failure("write");
      bytes = bytes.subspan(static_cast<size_t>(written));
    }
    return OkStatus();
  }

  // Syncs the file before and the directory after the rename, so that a crash leaves one of both.
  Status Commit() {
    constexpr mode_t kMode = S_IRUSR | S_IWUSR | S_IRGRP | S_IROTH;  // mkostemp gives 0600
    if (fchmod(fd_, kMode) != 0) return Failure("set the mode");
    if (fsync(fd_) != 0) return Failure("sync");
    if (rename(path_.c_str(), target_.c_str()) != 0) return Failure("rename into place");
    renamed_ = true;
    return SyncDirectory();
  }

 private:
  Status Failure(std::string_view action) const {
    return Unavailable(fmt::format("{}: cannot {}: {}", target_, action, std::strerror(errno)));
  }

  Status SyncDirectory() const {
    const std::filesystem::path parent = std::filesystem::path(target_).parent_path();
    const std::filesystem::path dir = parent.empty() ? std::filesystem::path(".") : parent;
    const int fd = open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return Failure("open its directory");
    const Status status = fsync(fd) == 0 ? OkStatus() : Failure("sync its directory");
    close(fd);
    return status;
  }

  std::string target_;
  std::string path_;
  int fd_ = -1;
  bool renamed_ = false;
};

std::span<const std::byte> AsBytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

std::string LittleEndian64(uint64_t value) {
  std::string bytes;
  for (int shift = 0; shift < 64; shift += 8) bytes += static_cast<char>((value >> shift) & 0xFF);
  return bytes;
}

}  // namespace

Status WriteSafetensors(const std::string& path, std::span<const NamedTensor> tensors,
                        const std::map<std::string, std::string>& metadata) {
  const std::vector<const NamedTensor*> order = FileOrder(tensors);
  const std::string header = HeaderJson(order, metadata);
  if (header.size() > kMaxSafetensorsHeaderBytes) {
    return InvalidRequest(fmt::format("{}: a header of {} bytes is above the limit of {}", path,
                                      header.size(), kMaxSafetensorsHeaderBytes));
  }
  // Reading the header back checks names, sizes and duplicates with the reader's own rules.
  const Result<SafetensorsHeader> read_back = ParseSafetensorsHeader(header);
  if (!read_back.ok()) {
    return InvalidRequest(fmt::format("{}: {}", path, read_back.status().message()));
  }
  if (read_back->entries.size() != tensors.size()) {
    return InvalidRequest(path + ": __metadata__ is no name for a tensor");
  }
  TemporaryFile file(path);
  DI_RETURN_IF_ERROR(file.Create());
  DI_RETURN_IF_ERROR(file.Write(AsBytes(LittleEndian64(header.size()))));
  DI_RETURN_IF_ERROR(file.Write(AsBytes(header)));
  for (const NamedTensor* tensor : order) {
    DI_RETURN_IF_ERROR(
        file.Write({tensor->view.data, static_cast<size_t>(tensor->view.size_bytes)}));
  }
  return file.Commit();
}

}  // namespace deepinfer
