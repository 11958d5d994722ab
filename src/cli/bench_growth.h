// How the cost of a token grows with what lies before it, as a chart: of decode steps with the
// context, of a prefill with the length of its prompt.
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cli/svg_chart.h"

namespace deepinfer {

struct GrowthSample {
  std::string series;  // what is alike but for the tokens: "decode batch 1 threads 2"
  std::string work;    // what has the same arithmetic too: "decode"
  int64_t tokens = 0;  // of the context or the prompt, above 0
  double us_per_token = 0;
  double flops_per_token = 0;
};

// A line for the time of a token of each series, then one for the arithmetic of each kind of work;
// both relative to the fewest tokens, of whatever has two points at least, in the order of samples.
std::vector<ChartSeries> GrowthSeries(std::span<const GrowthSample> samples);

std::string GrowthSvg(const std::string& subject, std::span<const GrowthSample> samples);

}  // namespace deepinfer
