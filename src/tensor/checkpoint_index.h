// `model.safetensors.index.json`: which shard file holds which tensor.
// Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace deepinfer {

struct CheckpointIndexEntry {
  std::string tensor;
  size_t shard = 0;  // position in CheckpointIndex::shards
};

struct CheckpointIndex {
  std::vector<std::string> shards;            // plain file names, ascending
  std::vector<CheckpointIndexEntry> entries;  // in file order; names may repeat
};

// Reads "weight_map" and ignores the other members. A shard name must be a plain *.safetensors
// file name, so an index cannot reach outside its directory.
Result<CheckpointIndex> ParseCheckpointIndex(std::string_view json);

}  // namespace deepinfer
