// Sizes and costs of a model: parameters and bytes per part, FLOPs per row, bytes per decoded
// token (model.md §12, §15).
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"
#include "tensor/checkpoint.h"

namespace deepinfer {

struct PartStats {
  std::string name;
  int64_t num_tensors = 0;
  int64_t parameters = 0;  // scales are not counted
  int64_t bytes = 0;       // scales are counted
};

// Parts in a fixed order, empty ones left out; the last one is "total".
std::vector<PartStats> CountParts(const Checkpoint& checkpoint);

// FLOPs (2 per multiply-add) of one row at context length n, the row itself included.
struct RowFlops {
  double encoder = 0;  // layers before the cut and publication of the decoder's entries
  double decoder = 0;  // layers from the cut on, without the head
  double head = 0;

  double decode() const { return encoder + decoder + head; }
};
RowFlops FlopsPerRow(const ModelConfig& config, int64_t n);

// Bytes one decode step must read from memory.
struct StepBytes {
  double weights = 0;
  double kv = 0;

  double total() const { return weights + kv; }
};

// A step of num_rows requests, one row each, at context length n: every weight that all rows share
// once, the Engram and embedding rows of each, the experts that so many rows choose when routing is
// uniform, and the cached entries each row attends to or scores. Draft layers and vision are not
// part of it.
StepBytes BytesPerDecodeStep(const ModelConfig& config, const Checkpoint& checkpoint,
                             int32_t num_rows, int64_t n);

// The weights of a step of one row.
double WeightBytesPerDecodedToken(const ModelConfig& config, const Checkpoint& checkpoint);

}  // namespace deepinfer
