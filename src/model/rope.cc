#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/det_math.h"

namespace deepinfer {

namespace {

// Channel pair whose wavelength makes `rotations` turns over the original context.
double CorrectionDim(const ModelConfig& c, double base, double rotations) {
  return c.rope_dim * std::log(c.yarn.original_max_positions / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(base));
}

void ApplyYarn(const ModelConfig& c, double base, std::vector<float>* inv) {
  const float low = static_cast<float>(
      std::max(std::floor(CorrectionDim(c, base, static_cast<double>(c.yarn.beta_fast))), 0.0));
  float high = static_cast<float>(
      std::min(std::ceil(CorrectionDim(c, base, static_cast<double>(c.yarn.beta_slow))),
               static_cast<double>(c.rope_dim - 1)));
  if (low == high) high += 0.001f;
  for (size_t i = 0; i < inv->size(); ++i) {
    const float ramp = std::clamp((static_cast<float>(i) - low) / (high - low), 0.0f, 1.0f);
    const float keep = 1.0f - ramp;
    float& f = (*inv)[i];
    f = f / c.yarn.factor * (1.0f - keep) + f * keep;
  }
}

}  // namespace

std::vector<float> RopeFrequencies(const ModelConfig& c, bool compressed) {
  const double base = compressed ? c.compress_rope_theta : c.rope_theta;
  std::vector<float> inv(static_cast<size_t>(c.rope_dim / 2));
  for (size_t i = 0; i < inv.size(); ++i) {
    // Power and reciprocal each round to fp32, as in the reference: one fp64 power with a negative
    // exponent differs in the last bit for a third of the pairs, 2e-6 in a cosine at position 300.
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(c.rope_dim);
    inv[i] = 1.0f / static_cast<float>(std::pow(base, static_cast<double>(exponent)));
  }
  if (compressed && c.yarn.original_max_positions > 0) ApplyYarn(c, base, &inv);
  return inv;
}

RopeTables::RopeTables(const ModelConfig& config, int32_t max_positions)
    : rope_dim_(config.rope_dim), max_positions_(max_positions) {
  plain_ = Build(RopeFrequencies(config, false));
  compressed_ = Build(RopeFrequencies(config, true));
}

RopeTables::Arrays RopeTables::Build(const std::vector<float>& frequencies) const {
  Arrays a;
  const size_t n = frequencies.size() * static_cast<size_t>(max_positions_);
  a.cos.reserve(n);
  a.sin.reserve(n);
  for (int32_t p = 0; p < max_positions_; ++p) {
    for (float f : frequencies) {
      const float angle = static_cast<float>(p) * f;
      double s, c;
      DetSinCos(static_cast<double>(angle), &s, &c);
      a.cos.push_back(static_cast<float>(c));
      a.sin.push_back(static_cast<float>(s));
    }
  }
  return a;
}

RopeTable RopeTables::View(const Arrays& arrays) const {
  return {arrays.cos.data(), arrays.sin.data(), rope_dim_, max_positions_};
}

}  // namespace deepinfer
