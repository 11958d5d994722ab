#include "kernels/cpu/unpack_scalar.h"

#include <bit>
#include <cstring>
#include <memory>

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

struct AllTables {
  Fp8ToBf16Table of_scale[256];
};

std::unique_ptr<const AllTables> MakeTables() {
  auto tables = std::make_unique<AllTables>();
  for (int scale = 0; scale < 256; ++scale) {
    for (int code = 0; code < 128; ++code) {
      const uint16_t bits = FloatToBf16(E4m3ToFloat(static_cast<uint8_t>(code)) *
                                        E8m0ToFloat(static_cast<uint8_t>(scale)));
      tables->of_scale[scale].high[code] = static_cast<uint8_t>(bits >> 8);
      tables->of_scale[scale].low[code] = static_cast<uint8_t>(bits);
    }
  }
  return tables;
}

}  // namespace

void UnpackScalarF32(const WeightMatrix& w, int64_t row, int64_t rows, int64_t k0, int64_t length,
                     int64_t swap, float* out, int64_t stride) {
  for (int64_t i = 0; i < length; ++i) {
    for (int64_t j = 0; j < rows; ++j)
      out[(i ^ swap) * stride + j] = DecodeWeight(w, row + j, k0 + i);
  }
}

void UnpackScalarPairs(const WeightMatrix& w, int64_t row, int64_t rows, int64_t k0, int64_t length,
                       float* out, int64_t stride) {
  for (int64_t i = 0; i < length; i += 2) {
    for (int64_t j = 0; j < rows; ++j) {
      const uint32_t even = FloatToBf16(DecodeWeight(w, row + j, k0 + i));
      const uint32_t odd = FloatToBf16(DecodeWeight(w, row + j, k0 + i + 1));
      out[i / 2 * stride + j] = std::bit_cast<float>(even | odd << 16);
    }
  }
}

const Fp8ToBf16Table* Fp8ToBf16Tables() {
  static const std::unique_ptr<const AllTables> tables = MakeTables();
  return tables->of_scale;
}

}  // namespace deepinfer
