// Any bytes as a safetensors file, as its header alone (no length field to guess) and as a
// checkpoint index. What is accepted must keep the promises the loader builds on.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <set>
#include <span>
#include <string_view>

#include "tensor/checkpoint_index.h"
#include "tensor/safetensors.h"
#include "tensor/safetensors_header.h"

namespace {

void Expect(bool holds) {
  if (!holds) std::abort();
}

void CheckFile(std::span<const std::byte> file) {
  const auto content = deepinfer::ParseSafetensors(file);
  if (!content.ok()) {
    Expect(!content.status().message().empty());
    return;
  }
  std::set<std::string_view> names;
  const std::byte* previous_end = file.data();
  for (const deepinfer::NamedTensor& tensor : content->tensors) {
    const deepinfer::TensorView& view = tensor.view;
    Expect(names.insert(tensor.name).second);
    Expect(view.size_bytes == *deepinfer::TensorSizeBytes(view.dtype, view.shape));
    Expect(view.data >= previous_end);
    Expect(view.size_bytes <= static_cast<uint64_t>(file.data() + file.size() - view.data));
    previous_end = view.data + view.size_bytes;
    // Faults under AddressSanitizer when a range leaves the file.
    const auto bytes = view.bytes();
    Expect(std::accumulate(bytes.begin(), bytes.end(), uint64_t{0}) <= bytes.size() * 255);
  }
}

void CheckHeader(std::string_view text) {
  const auto header = deepinfer::ParseSafetensorsHeader(text);
  if (!header.ok()) return;
  uint64_t next = 0;
  for (const deepinfer::SafetensorsEntry& entry : header->entries) {
    Expect(entry.begin == next && entry.end >= entry.begin);
    Expect(entry.end - entry.begin == *deepinfer::TensorSizeBytes(entry.dtype, entry.shape));
    next = entry.end;
  }
}

void CheckIndex(std::string_view text) {
  const auto index = deepinfer::ParseCheckpointIndex(text);
  if (!index.ok()) return;
  for (const auto& shard : index->shards) Expect(shard.find('/') == shard.npos);
  for (const auto& entry : index->entries) Expect(entry.shard < index->shards.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  CheckFile({reinterpret_cast<const std::byte*>(data), size});
  CheckHeader(text);
  CheckIndex(text);
  return 0;
}
