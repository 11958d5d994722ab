#include "engine/cut_rows.h"

#include <cstring>

#include "tensor/codecs.h"

namespace deepinfer {

namespace {

int64_t StreamFloats(const ModelConfig& config) { return int64_t{config.hc_mult} * config.dim; }

bool HasBf16Streams(const Model& model) {
  const ModelOptions& o = model.options();
  return ArithmeticOf(o.numerics, o.prod_deviations).stream == Rounding::kBf16;
}

template <typename T>
void Append(const T& value, std::vector<std::byte>* to) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  to->insert(to->end(), bytes.begin(), bytes.end());
}

template <typename T>
T Take(std::span<const std::byte>* from) {
  T value;
  std::memcpy(&value, from->data(), sizeof value);
  *from = from->subspan(sizeof value);
  return value;
}

}  // namespace

int64_t CutRowFloats(const ModelConfig& config) { return StreamFloats(config) + config.hc_mult; }

int64_t CutRowBytes(const Model& model) {
  const int64_t stream_bytes = HasBf16Streams(model) ? sizeof(uint16_t) : sizeof(float);
  return StreamFloats(model.config()) * stream_bytes +
         model.config().hc_mult * static_cast<int64_t>(sizeof(float));
}

void AppendCutRows(const Model& model, std::span<const float> rows, std::vector<std::byte>* to) {
  const auto row = static_cast<size_t>(CutRowFloats(model.config()));
  const auto streams = static_cast<size_t>(StreamFloats(model.config()));
  const bool is_bf16 = HasBf16Streams(model);
  to->reserve(to->size() + rows.size() / row * static_cast<size_t>(CutRowBytes(model)));
  for (size_t i = 0; i < rows.size(); ++i) {
    if (is_bf16 && i % row < streams) {
      Append(FloatToBf16(rows[i]), to);
    } else {
      Append(rows[i], to);
    }
  }
}

std::vector<float> ReadCutRows(const Model& model, std::span<const std::byte> from) {
  const auto row = static_cast<size_t>(CutRowFloats(model.config()));
  const auto streams = static_cast<size_t>(StreamFloats(model.config()));
  const bool is_bf16 = HasBf16Streams(model);
  std::vector<float> rows(from.size() / static_cast<size_t>(CutRowBytes(model)) * row);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i] =
        is_bf16 && i % row < streams ? Bf16ToFloat(Take<uint16_t>(&from)) : Take<float>(&from);
  }
  return rows;
}

}  // namespace deepinfer
