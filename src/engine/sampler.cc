#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/det_math.h"
#include "base/philox.h"
#include "engine/distribution.h"

namespace deepinfer {

namespace {

constexpr float kNegInf = -std::numeric_limits<float>::infinity();
constexpr float kGreedyBelow = 1e-5f;

// False with a NaN or +inf; -inf marks a token that cannot be drawn.
bool Drawable(std::span<const float> z) {
  return std::all_of(z.begin(), z.end(),
                     [](float v) { return v <= std::numeric_limits<float>::max(); });
}

// log(sum exp(z - max)) + max.
double LogSumExp(std::span<const float> z) {
  const float max = *std::max_element(z.begin(), z.end());
  double lane[16] = {};
  for (size_t i = 0; i < z.size(); ++i) {
    lane[i & 15] += DetExp(static_cast<double>(z[i]) - static_cast<double>(max));
  }
  for (size_t distance = 8; distance >= 1; distance /= 2) {
    for (size_t j = 0; j < distance; ++j) lane[j] += lane[j + distance];
  }
  return static_cast<double>(max) + DetLn(lane[0]);
}

}  // namespace

Sampler::Sampler(const SamplingParams& params, std::span<const int32_t> prompt_ids, int32_t end_id,
                 int32_t image_id)
    : params_(params),
      end_id_(end_id),
      image_id_(image_id),
      strict_(params.mode == SamplingMode::kStrict ||
              (params.mode == SamplingMode::kAuto && params.has_seed)),
      has_penalties_(params.repetition_penalty != 1.0f || params.frequency_penalty != 0.0f ||
                     params.presence_penalty != 0.0f) {
  if (params.repetition_penalty != 1.0f) {
    prompt_ids_.assign(prompt_ids.begin(), prompt_ids.end());
    std::sort(prompt_ids_.begin(), prompt_ids_.end());
    prompt_ids_.erase(std::unique(prompt_ids_.begin(), prompt_ids_.end()), prompt_ids_.end());
  }
}

void Sampler::Ban(std::vector<float>* z) const {
  if (image_id_ >= 0) (*z)[static_cast<size_t>(image_id_)] = kNegInf;
  for (int32_t id : params_.banned_ids) (*z)[static_cast<size_t>(id)] = kNegInf;
  if (num_committed_ < params_.min_tokens) {
    (*z)[static_cast<size_t>(end_id_)] = kNegInf;
    for (int32_t id : params_.stop_token_ids) (*z)[static_cast<size_t>(id)] = kNegInf;
  }
}

void Sampler::ApplyPenalties(std::vector<float>* z) const {
  if (!has_penalties_) return;
  const auto repeat = [&](int32_t id) {
    float& v = (*z)[static_cast<size_t>(id)];
    v = v > 0.0f ? v / params_.repetition_penalty : v * params_.repetition_penalty;
  };
  for (int32_t id : prompt_ids_) repeat(id);
  for (const auto& [id, count] : output_counts_) {
    if (params_.repetition_penalty != 1.0f &&
        !std::binary_search(prompt_ids_.begin(), prompt_ids_.end(), id)) {
      repeat(id);
    }
    (*z)[static_cast<size_t>(id)] -=
        params_.frequency_penalty * static_cast<float>(count) + params_.presence_penalty;
  }
}

Result<int32_t> Sampler::Sample(std::span<const float> logits, int64_t position) {
  if (!Drawable(logits)) return DataCorruption("a logit is NaN or infinite");
  std::vector<float> z(logits.begin(), logits.end());
  Ban(&z);
  ApplyPenalties(&z);
  for (const auto& [id, bias] : params_.logit_bias) z[static_cast<size_t>(id)] += bias;
  if (!Drawable(z)) return InvalidRequest("the penalties push a logit out of range");

  if (params_.temperature < kGreedyBelow) {
    const int32_t id = ArgMax(z);
    if (id < 0) return InvalidRequest("every token is banned at this position");
    return id;
  }
  const Survivors survivors =
      BuildSurvivors(z, params_.temperature, {params_.top_k, params_.top_p, params_.min_p});
  if (survivors.ids.empty()) return InvalidRequest("every token is banned at this position");
  const auto at = static_cast<uint64_t>(position);
  if (strict_) return DrawRace(survivors, params_.seed, at);
  return DrawCdf(survivors, RandomBits(RandomBlock(params_.seed, at, RandomPurpose::kSample, 0)));
}

void Sampler::Commit(int32_t id) {
  ++num_committed_;
  if (has_penalties_) ++output_counts_[id];
}

TokenLogprobs RawLogprobs(std::span<const float> logits, int32_t id, int32_t num_top) {
  const double log_sum = LogSumExp(logits);
  const auto value = [&](int32_t i) {
    return static_cast<float>(static_cast<double>(logits[static_cast<size_t>(i)]) - log_sum);
  };
  TokenLogprobs out;
  out.logprob = value(id);
  const size_t take = std::min(static_cast<size_t>(std::max(num_top, 0)), logits.size());
  if (take == 0) return out;
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(take), order.end(),
                    [&](int32_t a, int32_t b) {
                      const float za = logits[static_cast<size_t>(a)];
                      const float zb = logits[static_cast<size_t>(b)];
                      return za != zb ? za > zb : a < b;
                    });
  for (size_t i = 0; i < take; ++i) out.top.emplace_back(order[i], value(order[i]));
  return out;
}

}  // namespace deepinfer
