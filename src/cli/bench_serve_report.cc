#include "cli/bench_serve_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "cli/io.h"

namespace deepinfer {

namespace {

// Kinds of failure in a printed report, the frequent ones first.
constexpr size_t kMostErrorsTold = 8;

double PerSecond(int64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

std::string Row(std::string_view name, const Percentiles& p) {
  return fmt::format("{:<10} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f}\n", name,
                     p.mean, p.p50, p.p90, p.p95, p.p99, p.max);
}

std::string PercentilesJson(const Percentiles& p) {
  return fmt::format(
      R"({{"mean":{:.4f},"p50":{:.4f},"p90":{:.4f},"p95":{:.4f},"p99":{:.4f},"max":{:.4f}}})",
      p.mean, p.p50, p.p90, p.p95, p.p99, p.max);
}

}  // namespace

Percentiles MakePercentiles(std::vector<double> values) {
  Percentiles p;
  if (values.empty()) return p;
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    const double rank = std::ceil(share * static_cast<double>(values.size()));
    return values[static_cast<size_t>(std::max(rank, 1.0)) - 1];
  };
  double sum = 0;
  for (double v : values) sum += v;
  p.mean = sum / static_cast<double>(values.size());
  p.p50 = at(0.50);
  p.p90 = at(0.90);
  p.p95 = at(0.95);
  p.p99 = at(0.99);
  p.max = values.back();
  return p;
}

double LoadTestReport::requests_per_s() const { return PerSecond(num_ok, duration_s); }
double LoadTestReport::output_tokens_per_s() const { return PerSecond(output_tokens, duration_s); }
double LoadTestReport::prompt_tokens_per_s() const { return PerSecond(prompt_tokens, duration_s); }
double LoadTestReport::tokens_per_s_per_user() const {
  return tpot_ms.p50 > 0 ? 1000 / tpot_ms.p50 : 0;
}

LoadTestReport MakeReport(std::string label, int64_t concurrency, double duration_s,
                          std::span<const RequestOutcome> outcomes) {
  LoadTestReport report;
  report.label = std::move(label);
  report.concurrency = concurrency;
  report.duration_s = duration_s;
  std::vector<double> ttft, itl, tpot, e2e;
  std::map<std::string, int64_t> errors;
  for (const RequestOutcome& o : outcomes) {
    if (!o.ok) {
      ++report.num_failed;
      ++errors[o.error];
      continue;
    }
    ++report.num_ok;
    report.prompt_tokens += o.prompt_tokens;
    report.cached_tokens += o.cached_tokens;
    report.output_tokens += o.output_tokens;
    ttft.push_back(1000 * (o.first_token_s - o.start_s));
    e2e.push_back(1000 * (o.last_token_s - o.start_s));
    for (float gap : o.gaps_s) itl.push_back(1000 * static_cast<double>(gap));
    if (o.output_tokens > 1) {
      tpot.push_back(1000 * (o.last_token_s - o.first_token_s) /
                     static_cast<double>(o.output_tokens - 1));
    }
  }
  report.errors.assign(errors.begin(), errors.end());
  std::stable_sort(report.errors.begin(), report.errors.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  report.ttft_ms = MakePercentiles(std::move(ttft));
  report.itl_ms = MakePercentiles(std::move(itl));
  report.tpot_ms = MakePercentiles(std::move(tpot));
  report.e2e_ms = MakePercentiles(std::move(e2e));
  return report;
}

std::string ReportText(const LoadTestReport& r) {
  const double cached_share = r.prompt_tokens > 0 ? static_cast<double>(r.cached_tokens) /
                                                        static_cast<double>(r.prompt_tokens)
                                                  : 0.0;
  std::string text = fmt::format(
      "{}: {} ok, {} failed in {:.2f} s\n"
      "{:.2f} requests/s, {:.1f} output tokens/s, {:.1f} prompt tokens/s, {:.1f} % cached, "
      "{:.1f} tokens/s per user\n",
      r.label, r.num_ok, r.num_failed, r.duration_s, r.requests_per_s(), r.output_tokens_per_s(),
      r.prompt_tokens_per_s(), 100 * cached_share, r.tokens_per_s_per_user());
  text += fmt::format("{:<10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}\n", "ms", "mean", "p50",
                      "p90", "p95", "p99", "max");
  text +=
      Row("TTFT", r.ttft_ms) + Row("ITL", r.itl_ms) + Row("TPOT", r.tpot_ms) + Row("E2E", r.e2e_ms);
  size_t num_told = 0;
  for (const auto& [error, count] : r.errors) {
    if (num_told++ == kMostErrorsTold) break;
    text += fmt::format("failed {}: {}\n", count, error);
  }
  if (r.errors.size() > kMostErrorsTold) {
    text += fmt::format("and {} other kinds of failure, see --json\n",
                        r.errors.size() - kMostErrorsTold);
  }
  return text;
}

std::string ReportJson(const LoadTestReport& r) {
  std::string errors;
  for (const auto& [error, count] : r.errors) {
    if (!errors.empty()) errors += ',';
    errors += JsonString(error) + ":" + std::to_string(count);
  }
  return fmt::format(
      R"({{"label":{},"concurrency":{},"completed":{},"failed":{},"errors":{{{}}},)"
      R"("duration_s":{:.4f},"requests_per_s":{:.4f},"output_tokens":{},"prompt_tokens":{},)"
      R"("cached_tokens":{},"output_tokens_per_s":{:.3f},"prompt_tokens_per_s":{:.3f},)"
      R"("tokens_per_s_per_user":{:.3f},"ttft_ms":{},"itl_ms":{},"tpot_ms":{},"e2e_ms":{}}})",
      JsonString(r.label), r.concurrency, r.num_ok, r.num_failed, errors, r.duration_s,
      r.requests_per_s(), r.output_tokens, r.prompt_tokens, r.cached_tokens,
      r.output_tokens_per_s(), r.prompt_tokens_per_s(), r.tokens_per_s_per_user(),
      PercentilesJson(r.ttft_ms), PercentilesJson(r.itl_ms), PercentilesJson(r.tpot_ms),
      PercentilesJson(r.e2e_ms));
}

}  // namespace deepinfer
