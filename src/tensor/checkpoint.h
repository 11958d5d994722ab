// Checkpoint: all tensors of a model directory, found by exact name, mapped in stored form.
//
// The directory holds either `model.safetensors.index.json` with its shards, or a single
// `*.safetensors` file. Names may carry the optional prefix "model."; it is removed here, and a
// tensor present in both forms is an error (model.md §14).
//
// Thread rule: opened and consumed by one loading thread; afterwards const methods and the views
// may be used from any thread. Views live as long as the Checkpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tensor/mapped_file.h"
#include "tensor/safetensors.h"
#include "tensor/tensor_view.h"

namespace deepinfer {

struct CheckpointIndex;

class Checkpoint {
 public:
  // Every shard of the index must exist and hold exactly the tensors the index gives it. Errors
  // name the file and the tensor and say what to do.
  static Result<Checkpoint> Open(const std::string& dir);

  // nullptr when absent. Does not count as consumption.
  const TensorView* Find(std::string_view name) const;

  // The tensor with exactly this shape and one of these dtypes, marked consumed. not_found when
  // absent, data_corruption naming expected and found shape and dtype otherwise.
  Result<TensorView> Require(std::string_view name, std::initializer_list<DType> dtypes,
                             const Shape& shape);
  Result<TensorView> Require(std::string_view name, DType dtype, const Shape& shape) {
    return Require(name, {dtype}, shape);
  }

  size_t num_tensors() const { return entries_.size(); }
  // Index in [0, num_tensors()), ascending by name.
  const std::string& name(size_t index) const { return entries_[index].name; }
  const TensorView& view(size_t index) const { return entries_[index].view; }

  // Names never returned by Require, ascending.
  std::vector<std::string_view> UnconsumedNames() const;

  size_t num_shards() const { return shards_.size(); }
  const std::string& shard_path(size_t shard) const { return shards_[shard].path(); }
  // Index of the shard holding a tensor; -1 when there is no such tensor.
  int ShardOf(std::string_view name) const;

  // Sum of the stored sizes of all tensors.
  uint64_t total_bytes() const { return total_bytes_; }

  void Advise(MapAdvice advice) const;
  // MappedFile's over all shards.
  void UseHugePages() const;
  uint64_t HugePageBytes() const;
  // MappedFile::Prefault over all shards; progress counts the bytes of all files.
  Status Prefault(uint64_t chunk_bytes, const PrefaultProgress& progress) const;

 private:
  struct Entry {
    std::string name;
    TensorView view;
    size_t shard = 0;
    bool consumed = false;
  };

  Checkpoint() = default;
  const Entry* FindEntry(std::string_view name) const;
  Status AddShard(const std::string& path);
  Status SortEntries();
  Status CheckAgainstIndex(const CheckpointIndex& index) const;
  Status NotListed(const Entry& entry) const;

  std::string dir_;
  std::vector<SafetensorsFile> shards_;
  std::vector<Entry> entries_;  // ascending by name
  uint64_t total_bytes_ = 0;
};

}  // namespace deepinfer
