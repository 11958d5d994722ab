// A checkpoint directory in memory, to be changed and written elsewhere.
// Thread rule: one owner.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "support/temp_dir.h"
#include "tensor/checkpoint.h"
#include "tensor/safetensors_writer.h"

namespace deepinfer {

class CheckpointCopy {
 public:
  struct Tensor {
    DType dtype;
    Shape shape;
    std::vector<uint8_t> bytes;
    size_t shard = 0;
  };

  explicit CheckpointCopy(const std::string& dir) : dir_(dir) {
    Result<Checkpoint> source = Checkpoint::Open(dir);
    if (!source.ok()) {
      ADD_FAILURE() << source.status().ToString();
      return;
    }
    for (size_t i = 0; i < source->num_tensors(); ++i) {
      const TensorView& v = source->view(i);
      const auto bytes = v.bytes();
      tensors[source->name(i)] = {v.dtype,
                                  v.shape,
                                  {bytes.begin(), bytes.end()},
                                  static_cast<size_t>(source->ShardOf(source->name(i)))};
    }
    num_shards_ = source->num_shards();
  }

  // The tensor, which must exist.
  Tensor& At(const std::string& name) {
    EXPECT_TRUE(tensors.contains(name)) << name;
    return tensors[name];
  }
  // Removes every tensor whose name starts with prefix; their number.
  size_t Erase(const std::string& prefix) {
    return std::erase_if(tensors, [&](const auto& t) { return t.first.starts_with(prefix); });
  }

  static std::string ShardName(size_t shard) {
    return "model-" + std::to_string(shard + 1) + ".safetensors";
  }

  // Writes config.json, shards and index to an empty directory.
  void Write(const TempDir& to) const {
    std::filesystem::copy_file(dir_ + "/config.json", to.File("config.json"),
                               std::filesystem::copy_options::overwrite_existing);
    std::string map;
    std::vector<std::vector<NamedTensor>> shards(num_shards_);
    for (const auto& [name, t] : tensors) {
      const auto* data = reinterpret_cast<const std::byte*>(t.bytes.data());
      shards[t.shard].push_back({name, {t.dtype, t.shape, data, t.bytes.size()}});
      map += (map.empty() ? "\"" : ",\"") + name + "\":\"" + ShardName(t.shard) + "\"";
    }
    to.Write("model.safetensors.index.json", "{\"weight_map\":{" + map + "}}");
    for (size_t s = 0; s < shards.size(); ++s) {
      const Status status = WriteSafetensors(to.File(ShardName(s)), shards[s]);
      EXPECT_TRUE(status.ok()) << status.ToString();
    }
  }

  std::map<std::string, Tensor> tensors;

 private:
  std::string dir_;
  size_t num_shards_ = 0;
};

}  // namespace deepinfer
