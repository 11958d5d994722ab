// Embedding, norms and hyper-connections (model.md §4, §5).

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/det_math.h"
#include "kernels/reference/hc_row.h"
#include "kernels/reference/lane16.h"
#include "kernels/reference/reference_operators.h"
#include "kernels/reference/rounding.h"
#include "tensor/codecs.h"

namespace deepinfer {

namespace {

constexpr int kMaxCopies = 8;

float InverseRms(const float* x, int64_t n, float eps) {
  return 1.0f / std::sqrt(Lane16Dot(x, x, n) / static_cast<float>(n) + eps);
}

// Divides every row (or column) of comb [n, n] by its sum plus eps.
void NormalizeAxis(float* comb, int n, bool rows, float eps) {
  const int step = rows ? 1 : n;
  const int next = rows ? n : 1;
  for (int i = 0; i < n; ++i) {
    float sum = 0.0f;
    for (int j = 0; j < n; ++j) sum += comb[i * next + j * step];
    sum += eps;
    for (int j = 0; j < n; ++j) comb[i * next + j * step] /= sum;
  }
}

void RowSoftmax(float* comb, const HcShape& shape) {
  const int n = shape.num_copies;
  for (int j = 0; j < n; ++j) {
    float* row = comb + j * n;
    const float max = *std::max_element(row, row + n);
    float sum = 0.0f;
    for (int k = 0; k < n; ++k) sum += row[k] = DetExp(row[k] - max);
    for (int k = 0; k < n; ++k) row[k] = row[k] / sum + shape.eps;
  }
}

}  // namespace

void ReferenceOperators::Embed(int64_t num_rows, const int32_t* ids, const uint16_t* table,
                               int64_t dim, float* out) {
  for (int64_t t = 0; t < num_rows; ++t) {
    const uint16_t* row = table + ids[t] * dim;
    for (int64_t d = 0; d < dim; ++d) out[t * dim + d] = Bf16ToFloat(row[d]);
  }
}

void ReferenceOperators::Replicate(int64_t num_rows, const float* x, int32_t copies, int64_t dim,
                                   float* h) {
  for (int64_t t = 0; t < num_rows; ++t) {
    for (int32_t c = 0; c < copies; ++c) {
      std::copy(x + t * dim, x + (t + 1) * dim, h + (t * copies + c) * dim);
    }
  }
}

void ReferenceOperators::RmsNorm(int64_t num_rows, const float* x, const uint16_t* w, int64_t dim,
                                 float eps, Rounding rounding, float* out) {
  for (int64_t t = 0; t < num_rows; ++t) {
    const float* row = x + t * dim;
    const float r = InverseRms(row, dim, eps);
    for (int64_t d = 0; d < dim; ++d) {
      out[t * dim + d] = Round(rounding, Bf16ToFloat(w[d]) * (row[d] * r));
    }
  }
}

void StartHcRow(const float* m, const HcSite& site, const HcShape& shape, float* pre, float* post,
                float* comb) {
  const int n = shape.num_copies;
  for (int j = 0; j < n; ++j) {
    pre[j] = DetSigmoid(m[j] * site.scale[0] + site.base[j]) + shape.eps;
    post[j] = 2.0f * DetSigmoid(m[n + j] * site.scale[1] + site.base[n + j]);
  }
  for (int i = 0; i < n * n; ++i) comb[i] = m[2 * n + i] * site.scale[2] + site.base[2 * n + i];
  RowSoftmax(comb, shape);
}

void RunSinkhorn(const HcShape& shape, float* comb) {
  const int n = shape.num_copies;
  NormalizeAxis(comb, n, false, shape.eps);
  for (int i = 1; i < shape.sinkhorn_iters; ++i) {
    NormalizeAxis(comb, n, true, shape.eps);
    NormalizeAxis(comb, n, false, shape.eps);
  }
}

void ReferenceOperators::HcMixes(int64_t num_rows, const float* h, const HcSite& site,
                                 const HcShape& shape, float* pre, float* post, float* comb) {
  const int n = shape.num_copies;
  DI_CHECK(n <= kMaxCopies);
  const int64_t width = n * shape.dim;
  float m[(2 + kMaxCopies) * kMaxCopies];
  for (int64_t t = 0; t < num_rows; ++t) {
    const float* v = h + t * width;
    const float r = InverseRms(v, width, shape.rms_eps);
    for (int i = 0; i < (2 + n) * n; ++i) m[i] = Lane16Dot(site.fn + i * width, v, width) * r;
    StartHcRow(m, site, shape, pre + t * n, post + t * n, comb + t * n * n);
    RunSinkhorn(shape, comb + t * n * n);
  }
}

void ReferenceOperators::HcPre(int64_t num_rows, const float* h, const float* pre,
                               const HcShape& shape, Rounding rounding, float* out) {
  const int n = shape.num_copies;
  for (int64_t t = 0; t < num_rows; ++t) {
    for (int64_t d = 0; d < shape.dim; ++d) {
      float sum = 0.0f;
      for (int c = 0; c < n; ++c) sum += pre[t * n + c] * h[(t * n + c) * shape.dim + d];
      out[t * shape.dim + d] = Round(rounding, sum);
    }
  }
}

void ReferenceOperators::HcPost(int64_t num_rows, const float* x, const float* h, const float* post,
                                const float* comb, const HcShape& shape, Rounding rounding,
                                float* out) {
  const int n = shape.num_copies;
  for (int64_t t = 0; t < num_rows; ++t) {
    for (int k = 0; k < n; ++k) {
      for (int64_t d = 0; d < shape.dim; ++d) {
        float sum = 0.0f;
        for (int j = 0; j < n; ++j) {
          sum += comb[(t * n + j) * n + k] * h[(t * n + j) * shape.dim + d];
        }
        out[(t * n + k) * shape.dim + d] =
            Round(rounding, post[t * n + k] * x[t * shape.dim + d] + sum);
      }
    }
  }
}

void ReferenceOperators::HcMean(int64_t num_rows, const float* h, const HcShape& shape,
                                Rounding rounding, float* out, int64_t out_stride) {
  const int n = shape.num_copies;
  for (int64_t t = 0; t < num_rows; ++t) {
    for (int64_t d = 0; d < shape.dim; ++d) {
      float sum = 0.0f;
      for (int c = 0; c < n; ++c) sum += h[(t * n + c) * shape.dim + d];
      out[t * out_stride + d] = Round(rounding, sum / static_cast<float>(n));
    }
  }
}

}  // namespace deepinfer
