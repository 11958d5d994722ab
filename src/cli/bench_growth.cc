#include "cli/bench_growth.h"

#include <algorithm>
#include <map>
#include <string_view>

namespace deepinfer {

namespace {

// A line for every name, of the cost relative to that of the fewest tokens.
void AddLines(std::span<const GrowthSample> samples, std::string GrowthSample::*name,
              double GrowthSample::*cost, std::string_view suffix,
              std::vector<ChartSeries>* lines) {
  std::map<int64_t, double> costs;
  std::vector<std::string> done;
  for (const GrowthSample& of_line : samples) {
    if (std::ranges::find(done, of_line.*name) != done.end()) continue;
    done.push_back(of_line.*name);
    costs.clear();
    for (const GrowthSample& s : samples) {
      if (s.*name == of_line.*name) costs[s.tokens] = s.*cost;
    }
    if (costs.size() < 2) continue;
    ChartSeries& line = lines->emplace_back();
    line.name = of_line.*name + std::string(suffix);
    for (const auto& [tokens, value] : costs) {
      line.points.push_back({static_cast<double>(tokens), value / costs.begin()->second, ""});
    }
  }
}

}  // namespace

std::vector<ChartSeries> GrowthSeries(std::span<const GrowthSample> samples) {
  std::vector<ChartSeries> lines;
  AddLines(samples, &GrowthSample::series, &GrowthSample::us_per_token, "", &lines);
  AddLines(samples, &GrowthSample::work, &GrowthSample::flops_per_token, ", arithmetic", &lines);
  return lines;
}

std::string GrowthSvg(const std::string& subject, std::span<const GrowthSample> samples) {
  return LineChartSvg({"Cost of a token by what lies before it, " + subject,
                       "tokens of the context or the prompt", "relative to the fewest tokens"},
                      GrowthSeries(samples));
}

}  // namespace deepinfer
