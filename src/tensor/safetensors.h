// Reader of the safetensors file format: a validated header over a mapped file.
//
// Layout: 8 bytes little-endian header length, JSON header, data. Checks beyond the JSON itself:
// header at most 100 MB and inside the file; names, dtypes, shapes and byte ranges well formed;
// byte range = product(shape) x item size; the sorted ranges cover the data from its first byte
// without holes or overlap. Up to kMaxTrailingBytes zero bytes after the last tensor are accepted,
// because page-aligned writers leave them.
//
// Thread rule: immutable after Open; any thread may read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tensor/mapped_file.h"
#include "tensor/tensor_view.h"

namespace deepinfer {

inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;  // limit of the format
inline constexpr uint64_t kMaxTrailingBytes = 4095;                  // less than one page

struct NamedTensor {
  std::string name;
  TensorView view;
};

struct SafetensorsContent {
  std::vector<NamedTensor> tensors;             // by position in the file
  std::map<std::string, std::string> metadata;  // "__metadata__", empty when absent
};

// Validates a whole file image; the views point into it. Errors are data_corruption, or unsupported
// for well-formed files this reader does not take; each names the tensor, not the file.
Result<SafetensorsContent> ParseSafetensors(std::span<const std::byte> file);

class SafetensorsFile {
 public:
  // Errors of MappedFile::Open and ParseSafetensors, prefixed with the path.
  static Result<SafetensorsFile> Open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const MappedFile& file() const { return file_; }
  const std::vector<NamedTensor>& tensors() const { return content_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return content_.metadata; }

  // Linear search; nullptr when absent. For many look-ups use Checkpoint.
  const TensorView* Find(std::string_view name) const;

 private:
  SafetensorsFile(MappedFile file, SafetensorsContent content)
      : file_(std::move(file)), content_(std::move(content)) {}

  MappedFile file_;
  SafetensorsContent content_;
};

}  // namespace deepinfer
