// The picture of a concurrency sweep: throughput of the server against the speed one user sees.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/bench_serve_report.h"

namespace deepinfer {

namespace {

constexpr double kWidth = 720, kHeight = 480;
constexpr double kLeft = 80, kRight = 30, kTop = 50, kBottom = 60;

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

}  // namespace

std::string ThroughputSvg(std::string_view title, std::span<const LoadTestReport> reports) {
  double max_x = 0, max_y = 0;
  for (const LoadTestReport& r : reports) {
    max_x = std::max(max_x, r.tokens_per_s_per_user());
    max_y = std::max(max_y, r.output_tokens_per_s());
  }
  const Axis x_axis(max_x), y_axis(max_y);
  const auto x_of = [&](double v) { return kLeft + v / x_axis.end * (kWidth - kLeft - kRight); };
  const auto y_of = [&](double v) {
    return kHeight - kBottom - v / y_axis.end * (kHeight - kTop - kBottom);
  };
  std::string svg = fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" viewBox="0 0 {0} {1}" )"
      R"(font-family="sans-serif" font-size="12">)"
      "\n"
      R"(<rect width="100%" height="100%" fill="white"/>)"
      "\n",
      kWidth, kHeight);
  svg += Text(kWidth / 2, 24, "middle", title, R"( font-size="15")");
  for (double v = 0; v <= x_axis.end * 1.0001; v += x_axis.step) {
    svg += fmt::format(R"(<path d="M{0:.1f} {1:.1f}V{2:.1f}" stroke="#ddd"/>)"
                       "\n",
                       x_of(v), kTop, kHeight - kBottom);
    svg += Text(x_of(v), kHeight - kBottom + 18, "middle", fmt::format("{:g}", v));
  }
  for (double v = 0; v <= y_axis.end * 1.0001; v += y_axis.step) {
    svg += fmt::format(R"(<path d="M{0:.1f} {1:.1f}H{2:.1f}" stroke="#ddd"/>)"
                       "\n",
                       kLeft, y_of(v), kWidth - kRight);
    svg += Text(kLeft - 8, y_of(v) + 4, "end", fmt::format("{:g}", v));
  }
  svg += Text(kWidth / 2, kHeight - 16, "middle", "tokens/s of one user (median)");
  svg += Text(20, kHeight / 2, "middle", "output tokens/s of the server",
              fmt::format(R"x( transform="rotate(-90 20 {:.1f})")x", kHeight / 2));
  std::string line;
  for (const LoadTestReport& r : reports) {
    line += fmt::format("{}{:.1f} {:.1f}", line.empty() ? "M" : "L",
                        x_of(r.tokens_per_s_per_user()), y_of(r.output_tokens_per_s()));
  }
  svg += fmt::format(R"(<path d="{}" fill="none" stroke="#1f6feb" stroke-width="2"/>)"
                     "\n",
                     line);
  for (const LoadTestReport& r : reports) {
    const double x = x_of(r.tokens_per_s_per_user()), y = y_of(r.output_tokens_per_s());
    svg += fmt::format(R"(<circle cx="{:.1f}" cy="{:.1f}" r="4" fill="#1f6feb"/>)"
                       "\n",
                       x, y);
    svg += Text(x + 7, y - 7, "start", r.concurrency > 0 ? std::to_string(r.concurrency) : r.label);
  }
  return svg + "</svg>\n";
}

}  // namespace deepinfer
