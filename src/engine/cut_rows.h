// Rows between encoder and decoder, for the engine that runs the other half (model.md §13.1): of
// each the residual streams and the mix they are read with.
// Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "model/model.h"

namespace deepinfer {

// As a step has them: f32 [rows, hc_mult·dim + hc_mult].
int64_t CutRowFloats(const ModelConfig& config);

// As they travel: streams that the arithmetic rounds to bf16 take two bytes a value.
int64_t CutRowBytes(const Model& model);
void AppendCutRows(const Model& model, std::span<const float> rows, std::vector<std::byte>* to);
// from [n · CutRowBytes].
std::vector<float> ReadCutRows(const Model& model, std::span<const std::byte> from);

}  // namespace deepinfer
