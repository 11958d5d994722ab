#include "cli/bench_growth.h"

#include <algorithm>

namespace deepinfer {

std::vector<ChartSeries> GrowthSeries(std::span<const GrowthSample> samples) {
  std::vector<std::string> names;
  for (const GrowthSample& s : samples) {
    if (std::ranges::find(names, s.series) == names.end()) names.push_back(s.series);
  }
  std::vector<ChartSeries> lines;
  for (const std::string& name : names) {
    std::vector<GrowthSample> of_series;
    std::ranges::copy_if(samples, std::back_inserter(of_series),
                         [&](const GrowthSample& s) { return s.series == name; });
    if (of_series.size() < 2) continue;
    std::ranges::sort(of_series, {}, &GrowthSample::tokens);
    const GrowthSample& first = of_series.front();
    ChartSeries time{name, {}}, work{name + ", arithmetic", {}};
    for (const GrowthSample& s : of_series) {
      const auto x = static_cast<double>(s.tokens);
      time.points.push_back({x, s.us_per_token / first.us_per_token, ""});
      work.points.push_back({x, s.flops_per_token / first.flops_per_token, ""});
    }
    lines.push_back(std::move(time));
    lines.push_back(std::move(work));
  }
  return lines;
}

std::string GrowthSvg(const std::string& subject, std::span<const GrowthSample> samples) {
  return LineChartSvg({"Cost of a token by what lies before it, " + subject,
                       "tokens of the context or the prompt", "relative to the fewest tokens"},
                      GrowthSeries(samples));
}

}  // namespace deepinfer
