// The picture of a concurrency sweep: throughput of the server against the speed one user sees.
#include "cli/bench_serve_report.h"
#include "cli/svg_chart.h"

namespace deepinfer {

std::string ThroughputSvg(std::string_view title, std::span<const LoadTestReport> reports) {
  ChartSeries series;
  for (const LoadTestReport& r : reports) {
    series.points.push_back({r.tokens_per_s_per_user(), r.output_tokens_per_s(),
                             r.concurrency > 0 ? std::to_string(r.concurrency) : r.label});
  }
  return LineChartSvg(
      {std::string(title), "tokens/s of one user (median)", "output tokens/s of the server"},
      {&series, 1});
}

}  // namespace deepinfer
