// Compressor pooling, stored entries, index scores and selection (model.md §7, §8).

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/det_math.h"
#include "kernels/reference/kv_rows.h"
#include "kernels/reference/lane16.h"
#include "kernels/reference/reference_operators.h"
#include "kernels/reference/rounding.h"
#include "tensor/quantize.h"

namespace deepinfer {

namespace {

constexpr float kNegInf = -std::numeric_limits<float>::infinity();

// Writes the k best of score(0..n), ties to the lower index, ascending; -inf and NaN never.
template <typename ScoreFn>
int32_t TakeBest(int64_t n, int32_t k, ScoreFn&& score, int32_t* out) {
  std::vector<std::pair<float, int32_t>> valid;
  for (int64_t j = 0; j < n; ++j) {
    const float s = score(j);
    if (s > kNegInf) valid.emplace_back(s, static_cast<int32_t>(j));
  }
  const size_t take = std::min(valid.size(), static_cast<size_t>(k));
  const auto better = [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  };
  std::partial_sort(valid.begin(), valid.begin() + static_cast<std::ptrdiff_t>(take), valid.end(),
                    better);
  for (size_t i = 0; i < take; ++i) out[i] = valid[i].second;
  std::sort(out, out + take);
  return static_cast<int32_t>(take);
}

}  // namespace

void ReferenceOperators::CompressPair(int64_t num_rows, const float* kv0, const float* g0,
                                      const float* kv1, const float* g1, int64_t n,
                                      int64_t in_stride, Rounding rounding, float* latent) {
  for (int64_t t = 0; t < num_rows; ++t) {
    for (int64_t c = 0; c < n; ++c) {
      const int64_t i = t * in_stride + c;
      const float max = std::max(g0[i], g1[i]);
      const float e0 = DetExp(g0[i] - max), e1 = DetExp(g1[i] - max);
      const float sum = e0 + e1;
      latent[t * n + c] = Round(rounding, e0 / sum * kv0[i] + e1 / sum * kv1[i]);
    }
  }
}

void ReferenceOperators::StoreCompressed(int64_t num_rows, const float* x, int64_t n,
                                         KvFormat format, bool fp4_by_reciprocal, int64_t first,
                                         const KvPages& pages) {
  for (int64_t t = 0; t < num_rows; ++t) {
    std::byte* row = pages.MainRow(first + t);
    if (format == KvFormat::kFloat32) {
      std::memcpy(row, x + t * n, static_cast<size_t>(4 * n));
      continue;
    }
    uint8_t* codes = reinterpret_cast<uint8_t*>(row);
    QuantizeFp4Group16(x + t * n, static_cast<int>(n), fp4_by_reciprocal, codes, codes + n / 2);
  }
}

void ReferenceOperators::StoreIndexKeys(int64_t num_rows, const float* x, int64_t n,
                                        KvFormat format, int64_t first, const KvPages& pages) {
  for (int64_t t = 0; t < num_rows; ++t) {
    std::byte* codes = pages.IndexCodes(first + t);
    if (format == KvFormat::kFloat32) {
      std::memcpy(codes, x + t * n, static_cast<size_t>(4 * n));
      continue;
    }
    QuantizeFp4Group32(x + t * n, static_cast<int>(n), reinterpret_cast<uint8_t*>(codes),
                       reinterpret_cast<uint8_t*>(pages.IndexScales(first + t)));
  }
}

void ReferenceOperators::QdqFp4Group32(int64_t num_rows, float* x, int64_t n) {
  for (int64_t t = 0; t < num_rows; ++t) Fp4Group32QdqInPlace(x + t * n, static_cast<int>(n));
}

void ReferenceOperators::IndexScores(std::span<const IndexRow> rows, const float* q, const float* w,
                                     const IndexShape& shape, int64_t stride, float* scores) {
  const int64_t d = shape.head_dim;
  std::vector<float> key(static_cast<size_t>(d));
  for (size_t t = 0; t < rows.size(); ++t) {
    const IndexRow& row = rows[t];
    const int64_t base = static_cast<int64_t>(t) * shape.num_heads;
    float* out = scores + static_cast<int64_t>(t) * stride;
    std::fill(out, out + stride, kNegInf);
    const auto score_range = [&](int64_t begin, int64_t end) {
      for (int64_t j = begin; j < end; ++j) {
        LoadIndexKey(shape.format, row.pages, j, d, key.data());
        float sum = 0.0f;
        for (int head = 0; head < shape.num_heads; ++head) {
          const float dot = Lane16Dot(q + (base + head) * d, key.data(), d);
          sum = std::fma(std::max(dot, 0.0f), w[base + head], sum);
        }
        out[j] = sum;
      }
    };
    if (row.candidate_blocks == nullptr) {
      score_range(0, row.num_visible);
      continue;
    }
    for (int32_t i = 0; i < *row.num_candidate_blocks; ++i) {
      const int64_t begin = int64_t{row.candidate_blocks[i]} * shape.candidate_block_size;
      score_range(begin, std::min<int64_t>(begin + shape.candidate_block_size, row.num_visible));
    }
  }
}

void ReferenceOperators::SelectCandidates(std::span<const IndexRow> rows, const float* scores,
                                          int64_t stride, const IndexShape& shape, int32_t* blocks,
                                          int32_t* num_blocks) {
  const int64_t size = shape.candidate_block_size;
  for (size_t t = 0; t < rows.size(); ++t) {
    const float* row = scores + static_cast<int64_t>(t) * stride;
    const int64_t visible = rows[t].num_visible;
    const int64_t count = (visible + size - 1) / size;
    const int64_t newest = (visible - 1) / size;
    const auto block_score = [&](int64_t b) {
      if (b == newest) return std::numeric_limits<float>::infinity();
      // A loop instead of max_element: NaN compares false and so counts as -inf.
      float best = kNegInf;
      for (int64_t j = b * size; j < std::min((b + 1) * size, visible); ++j) {
        if (row[j] > best) best = row[j];
      }
      return best;
    };
    num_blocks[t] = TakeBest(count, shape.candidate_topk_blocks, block_score,
                             blocks + static_cast<int64_t>(t) * shape.candidate_topk_blocks);
  }
}

void ReferenceOperators::SelectTopK(std::span<const IndexRow> rows, const float* scores,
                                    int64_t stride, const IndexShape& shape, int32_t* indices,
                                    int32_t* num_indices) {
  for (size_t t = 0; t < rows.size(); ++t) {
    const float* row = scores + static_cast<int64_t>(t) * stride;
    num_indices[t] = TakeBest(
        rows[t].num_visible, shape.topk, [row](int64_t j) { return row[j]; },
        indices + static_cast<int64_t>(t) * shape.topk);
  }
}

}  // namespace deepinfer
