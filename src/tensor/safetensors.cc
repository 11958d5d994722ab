#include "tensor/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tensor/json_events.h"
#include "tensor/safetensors_header.h"

namespace deepinfer {
namespace {

constexpr uint64_t kLengthBytes = 8;

std::string_view AsText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The header text, once its length is known to be sound.
Result<std::string_view> HeaderText(std::span<const std::byte> file) {
  // What a clone without the large-file extension leaves in place of a weight file.
  if (AsText(file).starts_with("version https://git-lfs")) {
    return DataCorruption("a Git LFS pointer instead of the file; run `git lfs pull`");
  }
  if (file.size() < kLengthBytes) {
    return DataCorruption(
        fmt::format("{} bytes are too few for a safetensors file; download it again", file.size()));
  }
  uint64_t header_bytes = 0;
  for (uint64_t i = 0; i < kLengthBytes; ++i) {
    header_bytes |= std::to_integer<uint64_t>(file[i]) << (8 * i);
  }
  if (header_bytes > kMaxSafetensorsHeaderBytes) {
    return DataCorruption(
        fmt::format("header length {} is above the limit of {} bytes; this is no "
                    "safetensors file or it is damaged",
                    header_bytes, kMaxSafetensorsHeaderBytes));
  }
  if (header_bytes > file.size() - kLengthBytes) {
    return DataCorruption(fmt::format(
        "the header needs {} bytes but the file has {} in all; it is truncated, download it again",
        header_bytes, file.size()));
  }
  const std::string_view text = AsText(file.subspan(kLengthBytes, header_bytes));
  if (!text.starts_with('{')) {
    return DataCorruption("the header does not start with '{'; this is no safetensors file");
  }
  return text;
}

// data: the file behind its header. Entries must be contiguous, so the last one ends the data.
Status CheckDataSize(const std::vector<SafetensorsEntry>& entries,
                     std::span<const std::byte> data) {
  const uint64_t used = entries.empty() ? 0 : entries.back().end;
  if (used > data.size()) {
    const SafetensorsEntry& first_beyond =
        *std::find_if(entries.begin(), entries.end(),
                      [&](const SafetensorsEntry& entry) { return entry.end > data.size(); });
    return DataCorruption(fmt::format(
        "tensor {}: byte range [{}, {}) exceeds the {} bytes of data; the file is truncated, "
        "download it again",
        QuoteForMessage(first_beyond.name), first_beyond.begin, first_beyond.end, data.size()));
  }
  const std::span<const std::byte> trailing = data.subspan(used);
  const bool is_padding =
      trailing.size() <= kMaxTrailingBytes &&
      std::all_of(trailing.begin(), trailing.end(), [](std::byte b) { return b == std::byte{0}; });
  if (is_padding) return OkStatus();
  return DataCorruption(
      fmt::format("{} bytes after the last tensor belong to no tensor", trailing.size()));
}

}  // namespace

Result<SafetensorsContent> ParseSafetensors(std::span<const std::byte> file) {
  DI_ASSIGN_OR_RETURN(const std::string_view text, HeaderText(file));
  DI_ASSIGN_OR_RETURN(SafetensorsHeader header, ParseSafetensorsHeader(text));
  const std::span<const std::byte> data = file.subspan(kLengthBytes + text.size());
  DI_RETURN_IF_ERROR(CheckDataSize(header.entries, data));

  SafetensorsContent content;
  content.metadata = std::move(header.metadata);
  content.tensors.reserve(header.entries.size());
  for (SafetensorsEntry& entry : header.entries) {
    const TensorView view{entry.dtype, entry.shape, data.data() + entry.begin,
                          entry.end - entry.begin};
    content.tensors.push_back({std::move(entry.name), view});
  }
  return content;
}

Result<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  DI_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  Result<SafetensorsContent> content = ParseSafetensors(file.bytes());
  if (!content.ok()) return content.status().Annotate(path);
  return SafetensorsFile(std::move(file), *std::move(content));
}

const TensorView* SafetensorsFile::Find(std::string_view name) const {
  const auto found = std::find_if(content_.tensors.begin(), content_.tensors.end(),
                                  [&](const NamedTensor& tensor) { return tensor.name == name; });
  return found == content_.tensors.end() ? nullptr : &found->view;
}

}  // namespace deepinfer
