// Distances between two logit arrays, as numerics.md §3 defines them.
// Thread rule: pure functions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace deepinfer {

struct LogitDistance {
  double max = 0;
  double rms = 0;
  double mean_kl = 0;
  double argmax_share = 0;
  double rows_above_tenth = 0;
  int leading_rows = 0;  // rows before the first with max |d| > 1e-3
};

inline int ArgMax(const float* row, int64_t n) {
  return static_cast<int>(std::max_element(row, row + n) - row);
}

inline double Kl(const float* want, const float* got, int64_t n) {
  const auto log_sum = [n](const float* row) {
    const double max = *std::max_element(row, row + n);
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += std::exp(row[i] - max);
    return max + std::log(sum);
  };
  const double lw = log_sum(want), lg = log_sum(got);
  double kl = 0;
  for (int64_t i = 0; i < n; ++i) {
    kl += std::exp(want[i] - lw) * ((want[i] - lw) - (got[i] - lg));
  }
  return kl;
}

inline LogitDistance Compare(const std::vector<float>& want, const std::vector<float>& got,
                             int64_t vocab) {
  LogitDistance d;
  if (want.size() != got.size() || want.empty()) {
    d.max = d.rms = d.mean_kl = INFINITY;
    return d;
  }
  const int64_t rows = static_cast<int64_t>(want.size()) / vocab;
  double square = 0;
  bool leading = true;
  for (int64_t r = 0; r < rows; ++r) {
    const float* w = want.data() + r * vocab;
    const float* g = got.data() + r * vocab;
    double row_max = 0;
    for (int64_t i = 0; i < vocab; ++i) {
      const double e = std::fabs(static_cast<double>(w[i]) - static_cast<double>(g[i]));
      // NaN must fail every limit.
      row_max = std::isnan(row_max) || e <= row_max ? row_max : e;
      square += e * e;
    }
    d.max = std::isnan(d.max) || row_max <= d.max ? d.max : row_max;
    d.rows_above_tenth += row_max > 0.1;
    leading = leading && row_max <= 1e-3;
    d.leading_rows += leading;
    d.mean_kl += Kl(w, g, vocab);
    d.argmax_share += ArgMax(w, vocab) == ArgMax(g, vocab);
  }
  d.rms = std::sqrt(square / static_cast<double>(want.size()));
  d.mean_kl /= static_cast<double>(rows);
  d.argmax_share /= static_cast<double>(rows);
  d.rows_above_tenth /= static_cast<double>(rows);
  return d;
}

}  // namespace deepinfer
