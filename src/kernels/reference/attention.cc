// RoPE, window rows and attention over window and selected compressed entries (model.md §6).

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/det_math.h"
#include "kernels/denormals.h"
#include "kernels/reference/kv_rows.h"
#include "kernels/reference/lane16.h"
#include "kernels/reference/reference_operators.h"
#include "kernels/reference/rounding.h"
#include "tensor/quantize.h"

namespace deepinfer {

namespace {

constexpr int64_t kTileKeys = 64;
constexpr float kNoKeyMax = -1e30f;

// Online softmax state of one head over the tiles seen so far.
struct HeadState {
  float max = kNoKeyMax;
  float sum = 0.0f;
};

// Dots s [num_keys] -> softmax weights. Returns the factor by which what was summed before shrinks.
float WeighTile(float* s, int num_keys, const AttentionShape& shape, HeadState* state) {
  float max = state->max;
  for (int i = 0; i < num_keys; ++i) {
    s[i] *= shape.scale;
    max = std::max(max, s[i]);
  }
  for (int i = 0; i < num_keys; ++i) s[i] = DetExp(s[i] - max);
  const float alpha = DetExp(state->max - max);
  state->sum = state->sum * alpha + Lane16Sum(s, num_keys);
  state->max = max;
  for (int i = 0; i < num_keys; ++i) s[i] = Round(shape.weights, s[i]);
  return alpha;
}

void AddTileFp32(const float* keys, int num_keys, const float* q, const AttentionShape& shape,
                 HeadState* state, float* acc) {
  const int d = shape.head_dim;
  float s[kTileKeys];
  for (int i = 0; i < num_keys; ++i) s[i] = Lane16Dot(q, keys + int64_t{i} * d, d);
  const float alpha = WeighTile(s, num_keys, shape, state);
  for (int c = 0; c < d; ++c) acc[c] *= alpha;
  for (int i = 0; i < num_keys; ++i) {
    const float* key = keys + int64_t{i} * d;
    for (int c = 0; c < d; ++c) acc[c] = std::fma(s[i], key[c], acc[c]);
  }
}

// Lane16 pairs of two rows; the caller flushes denormals.
[[gnu::noinline]] float PairDot(const float* a, const float* b, int64_t n) {
  const auto product = [=](int64_t k, float sum) {
    return k < n ? std::fma(a[k], b[k], sum) : std::fma(0.0f, 0.0f, sum);
  };
  float lane[16] = {};
  for (int64_t i = 0; i < n; i += 8) {
    float sum = 0.0f;
    for (int64_t q = 0; q < 4; ++q) sum = product(i + q, product(i + 4 + q, sum));
    lane[i / 8 % 16] += sum;
  }
  return ReduceLanes(lane);
}

// acc = acc·alpha + weighted values, in pairs of keys; the caller flushes denormals. The key that
// completes the last pair is zero and has the weight 0.
[[gnu::noinline]] void AddPairs(const float* keys, int num_keys, int64_t d, const float* weights,
                                float alpha, float* acc) {
  for (int64_t c = 0; c < d; ++c) {
    float sum = acc[c] * alpha;
    for (int i = 0; i < num_keys; i += 2) {
      const bool is_full = i + 1 < num_keys;
      sum = std::fma(is_full ? weights[i + 1] : 0.0f, is_full ? keys[(i + 1) * d + c] : 0.0f, sum);
      sum = std::fma(weights[i], keys[i * d + c], sum);
    }
    acc[c] = sum;
  }
}

void AddTileBf16(const float* keys, int num_keys, const float* q, const AttentionShape& shape,
                 HeadState* state, float* acc) {
  const int64_t d = shape.head_dim;
  float s[kTileKeys];
  {
    const FlushDenormalsScope flush;
    for (int i = 0; i < num_keys; ++i) s[i] = PairDot(q, keys + i * d, d);
  }
  const float alpha = WeighTile(s, num_keys, shape, state);
  const FlushDenormalsScope flush;
  AddPairs(keys, num_keys, d, s, alpha, acc);
}

// Calls fn(keys, num_keys) for each tile of the row's key list, in order.
template <typename Fn>
void ForEachTile(const AttentionRow& row, const AttentionShape& shape, float* keys, Fn&& fn) {
  const int64_t d = shape.head_dim;
  for (int64_t p = row.window_lo; p <= row.position;) {
    const int64_t end = std::min<int64_t>((p / kTileKeys + 1) * kTileKeys, row.position + 1);
    for (int64_t i = p; i < end; ++i) {
      LoadWindowRow(shape.format, row.window.Row(i), d, keys + (i - p) * d);
    }
    fn(keys, static_cast<int>(end - p));
    p = end;
  }
  const int64_t num_selected = row.pages.pool == nullptr ? 0 : *row.num_selected;
  for (int64_t j = 0; j < num_selected; j += kTileKeys) {
    const int64_t end = std::min(j + kTileKeys, num_selected);
    for (int64_t i = j; i < end; ++i) {
      LoadCompressedRow(shape.format, row.pages.MainRow(row.selected[i]), d, keys + (i - j) * d);
    }
    fn(keys, static_cast<int>(end - j));
  }
}

}  // namespace

void ReferenceOperators::Rope(int64_t num_rows, float* x, int32_t num_heads, int32_t head_dim,
                              const int32_t* positions, const RopeTable& table, bool inverse,
                              Rounding rounding) {
  const int32_t half = table.rotary_dim / 2;
  for (int64_t t = 0; t < num_rows; ++t) {
    const float* cos = table.cos + int64_t{positions[t]} * half;
    const float* sin = table.sin + int64_t{positions[t]} * half;
    for (int32_t head = 0; head < num_heads; ++head) {
      float* v = x + (t * num_heads + head + 1) * head_dim - table.rotary_dim;
      for (int32_t i = 0; i < half; ++i) {
        const float a = v[2 * i], b = v[2 * i + 1];
        const float c = cos[i], s = inverse ? -sin[i] : sin[i];
        v[2 * i] = Round(rounding, a * c - b * s);
        v[2 * i + 1] = Round(rounding, a * s + b * c);
      }
    }
  }
}

void ReferenceOperators::StoreWindowRows(int64_t num_rows, const float* x, int64_t n,
                                         KvFormat format, std::byte* dst) {
  const int64_t row_bytes = WindowRowBytes(format, n);
  for (int64_t t = 0; t < num_rows; ++t) {
    if (format == KvFormat::kFloat32) {
      std::memcpy(dst + t * row_bytes, x + t * n, static_cast<size_t>(row_bytes));
      continue;
    }
    uint8_t* codes = reinterpret_cast<uint8_t*>(dst + t * row_bytes);
    QuantizeFp8Group32(x + t * n, static_cast<int>(n), codes, codes + n);
  }
}

void ReferenceOperators::WriteRing(int64_t num_rows, const std::byte* rows, int64_t row_bytes,
                                   int64_t first, int32_t ring_rows, std::byte* ring) {
  for (int64_t t = 0; t < num_rows; ++t) {
    std::memcpy(ring + (first + t) % ring_rows * row_bytes, rows + t * row_bytes,
                static_cast<size_t>(row_bytes));
  }
}

void ReferenceOperators::Attention(std::span<const AttentionRow> rows, const float* q,
                                   const float* sink, const AttentionShape& shape, float* o) {
  const int64_t d = shape.head_dim;
  std::vector<float> keys(static_cast<size_t>(kTileKeys * d));
  std::vector<HeadState> heads(static_cast<size_t>(shape.num_heads));
  for (size_t t = 0; t < rows.size(); ++t) {
    const int64_t base = static_cast<int64_t>(t) * shape.num_heads * d;
    std::fill(heads.begin(), heads.end(), HeadState{});
    std::fill(o + base, o + base + shape.num_heads * d, 0.0f);
    ForEachTile(rows[t], shape, keys.data(), [&](const float* tile, int num_keys) {
      for (int head = 0; head < shape.num_heads; ++head) {
        const auto add = shape.is_bf16dot() ? AddTileBf16 : AddTileFp32;
        add(tile, num_keys, q + base + head * d, shape, &heads[static_cast<size_t>(head)],
            o + base + head * d);
      }
    });
    for (int head = 0; head < shape.num_heads; ++head) {
      const HeadState& state = heads[static_cast<size_t>(head)];
      if (state.sum == 0.0f) continue;
      const float denominator = state.sum + DetExp(sink[head] - state.max);
      float* out = o + base + head * d;
      for (int64_t c = 0; c < d; ++c) out[c] /= denominator;
    }
  }
}

}  // namespace deepinfer
