// Linears of both kernel families and the activation quantiser.

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/denormals.h"
#include "kernels/reference/lane16.h"
#include "kernels/reference/reference_operators.h"
#include "kernels/reference/rounding.h"
#include "kernels/reference/weight_row.h"
#include "tensor/codecs.h"
#include "tensor/quantize.h"

namespace deepinfer {

namespace {

constexpr int64_t kSegment = 512;

// SeqK of the f32fma family.
float SeqKDot(const float* w, const float* x, int64_t k) {
  float total = 0.0f;
  for (int64_t begin = 0; begin < k; begin += kSegment) {
    const int64_t end = std::min(begin + kSegment, k);
    float acc = 0.0f;
    for (int64_t i = begin; i < end; ++i) acc = std::fma(w[i], x[i], acc);
    total = begin == 0 ? acc : total + acc;
  }
  return total;
}

// K of the bf16dot family with the zeros that fill its last block of 128.
size_t PaddedLength(int64_t k) { return static_cast<size_t>((k + 127) / 128 * 128); }

// One row of a weight of the bf16dot family, padded: values without their scales, and the scale of
// every group of 32.
struct CodedRow {
  std::vector<float> codes, scales;
};

CodedRow ReadCodedRow(const WeightMatrix& w, int64_t row) {
  const int64_t k = w.in_features;
  CodedRow out{std::vector<float>(PaddedLength(k)), std::vector<float>(PaddedLength(k) / 32, 1.0f)};
  if (w.format == WeightFormat::kBf16) {
    UnpackWeightRow(w, row, out.codes.data());
    return out;
  }
  const bool is_fp4 = w.format == WeightFormat::kFp4Group32;
  const uint8_t* bytes = static_cast<const uint8_t*>(w.data) + row * (is_fp4 ? k / 2 : k);
  const uint8_t* scales = w.scales + (is_fp4 ? row : row / 32) * (k / 32);
  for (int64_t i = 0; i < k; ++i) {
    out.codes[static_cast<size_t>(i)] =
        is_fp4 ? E2m1ToFloat(static_cast<uint8_t>(bytes[i / 2] >> (4 * (i & 1))))
               : E4m3ToFloat(bytes[i]);
  }
  for (int64_t g = 0; g < k / 32; ++g) out.scales[static_cast<size_t>(g)] = E8m0ToFloat(scales[g]);
  return out;
}

// Lane16 pairs of the bf16dot family (ops.h) with a padded x; the caller flushes denormals.
[[gnu::noinline]] float PairDot(const CodedRow& w, const float* x) {
  float lane[16] = {};
  for (size_t i = 0; i < w.codes.size(); i += 8) {
    const float* code = w.codes.data() + i;
    float sum = 0.0f;
    for (size_t q = 0; q < 4; ++q) {
      sum = std::fma(code[4 + q], x[i + 4 + q], sum);
      sum = std::fma(code[q], x[i + q], sum);
    }
    float& total = lane[i / 8 % 16];
    total = std::fma(sum, w.scales[i / 32], total);
  }
  return ReduceLanes(lane);
}

// y f32 [T, groups·n] = R(W x) of the bf16dot family; parts: rows x [T, groups] of PaddedLength.
void DotLinear(int64_t num_rows, const std::vector<float>& parts, const WeightMatrix& w,
               int32_t num_groups, Rounding rounding, float* y) {
  const size_t stride = PaddedLength(w.in_features);
  const int64_t group_out = w.out_features / num_groups;
  for (int64_t n = 0; n < w.out_features; ++n) {
    const CodedRow row = ReadCodedRow(w, n);
    const FlushDenormalsScope flush;
    for (int64_t m = 0; m < num_rows; ++m) {
      const size_t part = static_cast<size_t>(m * num_groups + n / group_out);
      y[m * w.out_features + n] = Round(rounding, PairDot(row, parts.data() + part * stride));
    }
  }
}

// Padded parts of k elements each.
std::vector<float> UnpackFp8Parts(int64_t num_parts, const Fp8Rows& x, int64_t k) {
  const size_t stride = PaddedLength(k);
  std::vector<float> parts(static_cast<size_t>(num_parts) * stride);
  for (int64_t i = 0; i < num_parts; ++i) {
    DequantizeFp8Group32(x.codes + i * k, x.scales + i * k / 32, static_cast<int>(k),
                         parts.data() + static_cast<size_t>(i) * stride);
  }
  return parts;
}

}  // namespace

void UnpackWeightRow(const WeightMatrix& w, int64_t row, float* out) {
  const int64_t k = w.in_features;
  switch (w.format) {
    case WeightFormat::kF32: {
      const float* src = static_cast<const float*>(w.data) + row * k;
      std::copy(src, src + k, out);
      return;
    }
    case WeightFormat::kBf16: {
      const uint16_t* src = static_cast<const uint16_t*>(w.data) + row * k;
      for (int64_t i = 0; i < k; ++i) out[i] = Bf16ToFloat(src[i]);
      return;
    }
    case WeightFormat::kFp8Block32: {
      const uint8_t* src = static_cast<const uint8_t*>(w.data) + row * k;
      const uint8_t* scales = w.scales + row / 32 * ((k + 31) / 32);
      for (int64_t i = 0; i < k; ++i) out[i] = E4m3ToFloat(src[i]) * E8m0ToFloat(scales[i / 32]);
      return;
    }
    case WeightFormat::kFp8Group32: {
      const uint8_t* src = static_cast<const uint8_t*>(w.data) + row * k;
      DequantizeFp8Group32(src, w.scales + row * (k / 32), static_cast<int>(k), out);
      return;
    }
    case WeightFormat::kFp4Group32: {
      const uint8_t* src = static_cast<const uint8_t*>(w.data) + row * (k / 2);
      const uint8_t* scales = w.scales + row * (k / 32);
      for (int64_t i = 0; i < k; ++i) {
        const uint8_t code = static_cast<uint8_t>(src[i / 2] >> (4 * (i & 1)));
        out[i] = E2m1ToFloat(code) * E8m0ToFloat(scales[i / 32]);
      }
      return;
    }
  }
}

void ReferenceOperators::LinearF32(int64_t num_rows, const float* x, const WeightMatrix& w,
                                   float* y) {
  GroupedLinearF32(num_rows, x, w, 1, y);
}

void ReferenceOperators::GroupedLinearF32(int64_t num_rows, const float* x, const WeightMatrix& w,
                                          int32_t num_groups, float* y) {
  const int64_t k = w.in_features;
  const int64_t group_out = w.out_features / num_groups;
  std::vector<float> row(static_cast<size_t>(k));
  for (int64_t n = 0; n < w.out_features; ++n) {
    UnpackWeightRow(w, n, row.data());
    const int64_t column = n / group_out * k;
    for (int64_t m = 0; m < num_rows; ++m) {
      y[m * w.out_features + n] = SeqKDot(row.data(), x + m * num_groups * k + column, k);
    }
  }
}

void ReferenceOperators::LinearFp8(int64_t num_rows, const Fp8Rows& x,
                                   std::span<const LinearOutput> outputs, Rounding rounding) {
  for (const auto& [w, y] : outputs) {
    DotLinear(num_rows, UnpackFp8Parts(num_rows, x, w->in_features), *w, 1, rounding, y);
  }
}

void ReferenceOperators::GroupedLinearFp8(int64_t num_rows, const Fp8Rows& x, const WeightMatrix& w,
                                          int32_t num_groups, float* y) {
  DotLinear(num_rows, UnpackFp8Parts(num_rows * num_groups, x, w.in_features), w, num_groups,
            Rounding::kNone, y);
}

void ReferenceOperators::LinearBf16(int64_t num_rows, const float* x, const WeightMatrix& w,
                                    Rounding rounding, float* y) {
  const int64_t k = w.in_features;
  const size_t stride = PaddedLength(k);
  std::vector<float> rows(static_cast<size_t>(num_rows) * stride);
  for (int64_t m = 0; m < num_rows; ++m) {
    std::copy(x + m * k, x + (m + 1) * k, rows.begin() + m * static_cast<int64_t>(stride));
  }
  DotLinear(num_rows, rows, w, 1, rounding, y);
}

void ReferenceOperators::Head(int64_t num_rows, const float* x, const WeightMatrix& w, float* y,
                              float* maxima) {
  LinearBf16(num_rows, x, w, Rounding::kNone, y);
  BlockMaxima(num_rows, y, w.out_features, maxima);
}

void ReferenceOperators::BlockMaxima(int64_t num_rows, const float* x, int64_t cols,
                                     float* maxima) {
  for (int64_t m = 0; m < num_rows; ++m) {
    for (int64_t begin = 0; begin < cols; begin += kMaximaBlock) {
      const float* first = x + m * cols + begin;
      const float* last = first + std::min(kMaximaBlock, cols - begin);
      const bool finite = std::all_of(first, last, [](float v) { return std::isfinite(v); });
      *maxima++ = finite ? *std::max_element(first, last) : NAN;
    }
  }
}

void ReferenceOperators::QuantizeFp8(int64_t num_rows, const float* x, int64_t k, Fp8RowsOut out) {
  for (int64_t m = 0; m < num_rows; ++m) {
    QuantizeFp8Group32(x + m * k, static_cast<int>(k), out.codes + m * k, out.scales + m * k / 32);
  }
}

}  // namespace deepinfer
