#include "kernels/cpu/unpack_scalar.h"

#include <cstring>

#include "base/check.h"
#include "tensor/codecs.h"

namespace deepinfer {

namespace {

float DecodeWeight(const WeightMatrix& w, int64_t row, int64_t i) {
  const int64_t k = w.in_features;
  const uint8_t* bytes = static_cast<const uint8_t*>(w.data);
  switch (w.format) {
    case WeightFormat::kF32: {
      float value;
      std::memcpy(&value, bytes + 4 * (row * k + i), sizeof value);
      return value;
    }
    case WeightFormat::kBf16: {
      uint16_t value;
      std::memcpy(&value, bytes + 2 * (row * k + i), sizeof value);
      return Bf16ToFloat(value);
    }
    case WeightFormat::kFp8Block32:
      return E4m3ToFloat(bytes[row * k + i]) *
             E8m0ToFloat(w.scales[row / 32 * ((k + 31) / 32) + i / 32]);
    case WeightFormat::kFp8Group32:
      return E4m3ToFloat(bytes[row * k + i]) * E8m0ToFloat(w.scales[row * (k / 32) + i / 32]);
    case WeightFormat::kFp4Group32:
      return E2m1ToFloat(static_cast<uint8_t>(bytes[row * (k / 2) + i / 2] >> (4 * (i & 1)))) *
             E8m0ToFloat(w.scales[row * (k / 32) + i / 32]);
  }
  DI_CHECK(false);
  return 0.0f;
}

}  // namespace

void UnpackScalarF32(const WeightMatrix& w, int64_t row, int64_t rows, int64_t k0, int64_t length,
                     float* out, int64_t stride) {
  for (int64_t i = 0; i < length; ++i) {
    for (int64_t j = 0; j < rows; ++j) out[i * stride + j] = DecodeWeight(w, row + j, k0 + i);
  }
}

void UnpackScalarBf16(const uint8_t* codes, const uint8_t* scales, int64_t k, uint16_t* out) {
  for (int64_t i = 0; i < k; ++i) {
    out[i] = FloatToBf16(E4m3ToFloat(codes[i]) * E8m0ToFloat(scales[i / 32]));
  }
}

}  // namespace deepinfer
