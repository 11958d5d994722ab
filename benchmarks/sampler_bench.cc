// Time to choose the tokens of a decode step of eight rows, by vocabulary and kind of request. The
// reported time is of the whole step; 50 us is what scheduling, sampling and delivery may take.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <random>
#include <span>

#include "engine/sampler.h"

namespace deepinfer {
namespace {

constexpr size_t kRows = 8;

// Rows like those of a trained model: nearly all mass on few tokens, and a wide tail; or, when
// flat, like those of one with random weights, where a filter keeps tens of thousands of tokens.
std::vector<float> Rows(size_t vocab, bool flat) {
  std::mt19937 rng(1);
  std::normal_distribution<float> tail(0.0f, 2.5f);
  std::vector<float> z(kRows * vocab);
  for (float& v : z) v = tail(rng);
  for (size_t row = 0; row < kRows; ++row) {
    for (int i = 0; i < 20 && !flat; ++i) z[row * vocab + rng() % vocab] = 15.0f + tail(rng);
  }
  return z;
}

// Of one row, as the head gives them.
std::vector<float> MaximaOf(std::span<const float> row) {
  std::vector<float> maxima;
  for (size_t i = 0; i < row.size(); i += kMaximaBlock) {
    const auto block = row.subspan(i, std::min<size_t>(kMaximaBlock, row.size() - i));
    maxima.push_back(*std::max_element(block.begin(), block.end()));
  }
  return maxima;
}

void SampleStep(benchmark::State& state, const SamplingParams& params, bool flat = false,
                bool has_maxima = true) {
  const auto vocab = static_cast<size_t>(state.range(0));
  std::vector<float> z = Rows(vocab, flat);
  std::vector<std::vector<float>> maxima(kRows);
  for (size_t row = 0; row < kRows && has_maxima; ++row) {
    maxima[row] = MaximaOf(std::span<const float>(z).subspan(row * vocab, vocab));
  }
  const Sampler sampler(params, {}, 1, 2);
  SamplerScratch scratch;
  int64_t position = 0;
  for (auto _ : state) {
    for (size_t row = 0; row < kRows; ++row) {
      SampleRow in;
      in.logits = std::span<float>(z).subspan(row * vocab, vocab);
      in.maxima = maxima[row];
      in.position = ++position;
      benchmark::DoNotOptimize(sampler.Sample(in, &scratch));
    }
  }
}

SamplingParams With(float temperature, bool seeded, float top_p, int32_t num_top_logprobs) {
  SamplingParams p;
  p.temperature = temperature;
  p.has_seed = seeded;
  p.seed = 7;
  p.top_p = top_p;
  p.num_top_logprobs = num_top_logprobs;
  return p;
}

SamplingParams TopK() {
  SamplingParams p = With(1, true, 1, -1);
  p.top_k = 40;
  return p;
}

void Vocabularies(benchmark::internal::Benchmark* b) {
  b->Arg(16384)->Arg(129280)->Unit(benchmark::kMicrosecond);
}

BENCHMARK_CAPTURE(SampleStep, greedy, With(0, false, 1, -1))->Apply(Vocabularies);
BENCHMARK_CAPTURE(SampleStep, greedy_without_maxima, With(0, false, 1, -1), false, false)
    ->Apply(Vocabularies);
BENCHMARK_CAPTURE(SampleStep, greedy_logprobs_20, With(0, false, 1, 20))->Apply(Vocabularies);
BENCHMARK_CAPTURE(SampleStep, cdf, With(1, false, 1, -1))->Apply(Vocabularies);
BENCHMARK_CAPTURE(SampleStep, cdf_top_p, With(1, false, 0.95f, -1))->Apply(Vocabularies);
BENCHMARK_CAPTURE(SampleStep, cdf_top_p_flat, With(1, false, 0.95f, -1), true)->Apply(Vocabularies);
BENCHMARK_CAPTURE(SampleStep, race, With(1, true, 1, -1))->Apply(Vocabularies);
BENCHMARK_CAPTURE(SampleStep, race_top_p, With(1, true, 0.95f, -1))->Apply(Vocabularies);
BENCHMARK_CAPTURE(SampleStep, race_top_k, TopK())->Apply(Vocabularies);
BENCHMARK_CAPTURE(SampleStep, race_top_k_without_maxima, TopK(), false, false)->Apply(Vocabularies);

}  // namespace
}  // namespace deepinfer

BENCHMARK_MAIN();
