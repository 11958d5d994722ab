// RoPE tables of the two bases (model.md §6.1).
// Thread rule: immutable after Create.
#pragma once

#include <vector>

#include "kernels/ops.h"
#include "model/config.h"

namespace deepinfer {

// Frequency of every channel pair, f32 [rope_dim/2]: with YaRN for layers that read compressed
// keys, plain otherwise.
std::vector<float> RopeFrequencies(const ModelConfig& config, bool compressed);

// Cosines and sines of positions [0, max_positions); the angle is the fp32 product of position
// and frequency.
class RopeTables {
 public:
  RopeTables(const ModelConfig& config, int32_t max_positions);

  // Layers with ratio 0 and draft layers use the plain table, others the compressed one.
  RopeTable plain() const { return View(plain_); }
  RopeTable compressed() const { return View(compressed_); }

 private:
  struct Arrays {
    std::vector<float> cos, sin;
  };
  Arrays Build(const std::vector<float>& frequencies) const;
  RopeTable View(const Arrays& arrays) const;

  int32_t rope_dim_;
  int32_t max_positions_;
  Arrays plain_, compressed_;
};

}  // namespace deepinfer
