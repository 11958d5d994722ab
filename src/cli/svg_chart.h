// Line charts as SVG text.
// Thread rule: pure functions.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer {

struct ChartPoint {
  double x = 0, y = 0;
  std::string label;
};

struct ChartSeries {
  std::string name;  // empty: not named
  std::vector<ChartPoint> points;
};

struct ChartText {
  std::string title, x, y;
};

// Both axes begin at 0; values must be finite and at least 0.
std::string LineChartSvg(const ChartText& text, std::span<const ChartSeries> series);

}  // namespace deepinfer
