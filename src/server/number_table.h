// Gauges and counters read off a struct of numbers by a table of rows: name, help, how to read, one
// more label.
// Thread rule: one thread at a time. Included by the files that define series only.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/metric_families.h"

namespace deepinfer {

// What a gauge row reads where there is nothing to show: its series is left out.
inline constexpr double kNotKnown = std::numeric_limits<double>::quiet_NaN();

template <typename Stats>
struct NumberRow {
  std::string_view name;
  const char* help;
  double (*get)(const Stats&);
  // One more label; "" for none.
  const char* label = "";
  const char* value = "";
};

// The `engine` label and the row's own, if it has one.
template <typename Row>
MetricLabels LabelsOf(const Row& row, const std::string& engine) {
  MetricLabels labels{{"engine", engine}};
  if (*row.label != '\0') labels.emplace(row.label, row.value);
  return labels;
}

// The series of one engine. Rows have static storage; counters hold totals that only grow.
template <typename Stats>
class NumberTable {
 public:
  NumberTable(std::span<const NumberRow<Stats>> gauges, std::span<const NumberRow<Stats>> counters,
              prometheus::Registry* registry, const MetricLabels& labels, MetricsCompat compat,
              const std::string& engine)
      : gauge_rows_(gauges), counter_rows_(counters), shown_(counters.size(), 0.0) {
    for (const auto& row : gauges) {
      gauges_.push_back({{*registry, row.name, row.help, labels, compat}, LabelsOf(row, engine)});
    }
    for (const auto& row : counters) {
      counters_.push_back(
          Families<prometheus::Counter>(*registry, row.name, row.help, labels, compat)
              .Get(LabelsOf(row, engine)));
    }
  }

  // The engine began anew: its totals are added to what it did before.
  void Restart() { std::fill(shown_.begin(), shown_.end(), 0.0); }
  // Ends its series.
  void Remove() {
    for (ShownGauge& gauge : gauges_) gauge.series.Remove();
    for (auto& series : counters_) series.Remove();
  }

  void Show(const Stats& now) {
    for (size_t i = 0; i < gauges_.size(); ++i) gauges_[i].Show(gauge_rows_[i].get(now));
    for (size_t i = 0; i < counters_.size(); ++i) {
      // A reader that comes late brings an older state; counters never go back.
      const double total = std::max(shown_[i], counter_rows_[i].get(now));
      counters_[i].Increment(total - shown_[i]);
      shown_[i] = total;
    }
  }

 private:
  struct ShownGauge {
    Families<prometheus::Gauge> families;
    MetricLabels labels;
    Series<prometheus::Gauge> series{};

    void Show(double value) {
      if (std::isnan(value)) return series.Remove();
      if (series.empty()) series = families.Get(labels);
      series.Set(value);
    }
  };

  std::span<const NumberRow<Stats>> gauge_rows_;
  std::span<const NumberRow<Stats>> counter_rows_;
  std::vector<ShownGauge> gauges_;
  std::vector<Series<prometheus::Counter>> counters_;
  std::vector<double> shown_;
};

template <auto kMember, typename Stats>
double Count(const Stats& s) {
  return static_cast<double>(s.*kMember);
}

template <auto kMember, size_t kIndex, typename Stats>
double CountAt(const Stats& s) {
  return static_cast<double>((s.*kMember)[kIndex]);
}

}  // namespace deepinfer
