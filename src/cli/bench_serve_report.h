// What a load test measured: outcomes of single requests, their percentiles, and how they are
// written (text, JSON, SVG).
// Thread rule: values and pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer {

// One request as the client saw it; times in seconds after the start of the run.
struct RequestOutcome {
  bool ok = false;
  int status = 0;     // 0: no answer came
  std::string error;  // why it is not ok
  double start_s = 0;
  double first_token_s = 0;
  double last_token_s = 0;
  std::vector<float> gaps_s;  // between events with text
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t output_tokens = 0;
};

struct Percentiles {
  double mean = 0, p50 = 0, p90 = 0, p95 = 0, p99 = 0, max = 0;
};

// Nearest-rank percentiles; all 0 without values.
Percentiles MakePercentiles(std::vector<double> values);

struct LoadTestReport {
  std::string label;        // "concurrency 8", "rate 2.5/s"
  int64_t concurrency = 0;  // of a closed loop; 0: open
  int64_t num_ok = 0;
  int64_t num_failed = 0;
  std::vector<std::pair<std::string, int64_t>> errors;  // by text, most frequent first
  double duration_s = 0;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t output_tokens = 0;
  Percentiles ttft_ms, itl_ms, tpot_ms, e2e_ms;

  double requests_per_s() const;
  double output_tokens_per_s() const;
  double prompt_tokens_per_s() const;
  // Tokens a single client sees per second, in the median.
  double tokens_per_s_per_user() const;
};

LoadTestReport MakeReport(std::string label, int64_t concurrency, double duration_s,
                          std::span<const RequestOutcome> outcomes);

std::string ReportText(const LoadTestReport& report);

// One JSON object: {"label", "completed", ..., "ttft_ms": {"mean", "p50", ...}, ...}.
std::string ReportJson(const LoadTestReport& report);

// An SVG picture: output tokens/s (y) against tokens/s of one user (x), one point per report.
std::string ThroughputSvg(std::string_view title, std::span<const LoadTestReport> reports);

}  // namespace deepinfer
