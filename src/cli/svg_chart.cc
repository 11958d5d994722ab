#include "cli/svg_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace deepinfer {

namespace {

constexpr double kWidth = 720, kHeight = 480;
constexpr double kLeft = 80, kRight = 30, kTop = 50, kBottom = 60;
constexpr std::array<std::string_view, 5> kColours = {"#1f6feb", "#d1242f", "#1a7f37", "#9a6700",
                                                      "#8250df"};

// 1, 2 or 5 times a power of ten: about five steps up to max.
double TickStep(double max) {
  const double raw = max / 5;
  const double decade = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (raw <= factor * decade) return factor * decade;
  }
  return 10 * decade;
}

std::string Escaped(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '&') {
      out += "&amp;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string Text(double x, double y, std::string_view anchor, std::string_view text,
                 std::string_view more = "") {
  return fmt::format(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="{}"{}>{}</text>)"
                     "\n",
                     x, y, anchor, more, Escaped(text));
}

struct Axis {
  double end, step;
  explicit Axis(double max) : step(TickStep(max > 0 ? max : 1)) {
    end = step * std::ceil((max > 0 ? max : 1) / step);
  }
};

class Chart {
 public:
  Chart(double max_x, double max_y) : x_axis_(max_x), y_axis_(max_y) {
    svg_ = fmt::format(R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" )"
                       R"(viewBox="0 0 {0} {1}" font-family="sans-serif" font-size="12">)"
                       "\n"
                       R"(<rect width="100%" height="100%" fill="white"/>)"
                       "\n",
                       kWidth, kHeight);
  }

  void Frame(const ChartText& text) {
    svg_ += Text(kWidth / 2, 24, "middle", text.title, R"( font-size="15")");
    for (double v = 0; v <= x_axis_.end * 1.0001; v += x_axis_.step) {
      svg_ += fmt::format(R"(<path d="M{0:.1f} {1:.1f}V{2:.1f}" stroke="#ddd"/>)"
                          "\n",
                          X(v), kTop, kHeight - kBottom);
      svg_ += Text(X(v), kHeight - kBottom + 18, "middle", fmt::format("{:g}", v));
    }
    for (double v = 0; v <= y_axis_.end * 1.0001; v += y_axis_.step) {
      svg_ += fmt::format(R"(<path d="M{0:.1f} {1:.1f}H{2:.1f}" stroke="#ddd"/>)"
                          "\n",
                          kLeft, Y(v), kWidth - kRight);
      svg_ += Text(kLeft - 8, Y(v) + 4, "end", fmt::format("{:g}", v));
    }
    svg_ += Text(kWidth / 2, kHeight - 16, "middle", text.x);
    svg_ += Text(20, kHeight / 2, "middle", text.y,
                 fmt::format(R"x( transform="rotate(-90 20 {:.1f})")x", kHeight / 2));
  }

  void Add(const ChartSeries& series, size_t index) {
    const std::string_view colour = kColours[index % kColours.size()];
    std::string line;
    for (const ChartPoint& p : series.points) {
      line += fmt::format("{}{:.1f} {:.1f}", line.empty() ? "M" : "L", X(p.x), Y(p.y));
    }
    svg_ += fmt::format(R"(<path d="{}" fill="none" stroke="{}" stroke-width="2"/>)"
                        "\n",
                        line, colour);
    for (const ChartPoint& p : series.points) {
      svg_ += fmt::format(R"(<circle cx="{:.1f}" cy="{:.1f}" r="4" fill="{}"/>)"
                          "\n",
                          X(p.x), Y(p.y), colour);
      svg_ += Text(X(p.x) + 7, Y(p.y) - 7, "start", p.label);
    }
    if (series.name.empty()) return;
    svg_ += Text(kLeft + 12, kTop + 16 + 16 * static_cast<double>(index), "start", series.name,
                 fmt::format(R"( fill="{}")", colour));
  }

  std::string Take() { return std::move(svg_) + "</svg>\n"; }

 private:
  double X(double v) const { return kLeft + v / x_axis_.end * (kWidth - kLeft - kRight); }
  double Y(double v) const {
    return kHeight - kBottom - v / y_axis_.end * (kHeight - kTop - kBottom);
  }

  Axis x_axis_, y_axis_;
  std::string svg_;
};

}  // namespace

std::string LineChartSvg(const ChartText& text, std::span<const ChartSeries> series) {
  double max_x = 0, max_y = 0;
  for (const ChartSeries& s : series) {
    for (const ChartPoint& p : s.points) {
      max_x = std::max(max_x, p.x);
      max_y = std::max(max_y, p.y);
    }
  }
  Chart chart(max_x, max_y);
  chart.Frame(text);
  for (size_t i = 0; i < series.size(); ++i) chart.Add(series[i], i);
  return chart.Take();
}

}  // namespace deepinfer
