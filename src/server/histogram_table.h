// Histograms read off a struct of statistics by a table of rows, as server/number_table.h does
// with numbers.
// Thread rule: one thread at a time. Included by the files that define series only.
#pragma once

#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/statistics.h"
#include "server/metric_families.h"
#include "server/number_table.h"

namespace deepinfer {

template <typename Stats>
struct HistogramRow {
  std::string_view name;
  const char* help;
  const StatHistogram& (*get)(const Stats&);
  // One more label; "" for none.
  const char* label = "";
  const char* value = "";
};

// The series of one engine. Rows have static storage; histograms only grow.
template <typename Stats>
class HistogramTable {
 public:
  HistogramTable(std::span<const HistogramRow<Stats>> rows, prometheus::Registry* registry,
                 const MetricLabels& labels, MetricsCompat compat, const std::string& engine)
      : rows_(rows) {
    for (const auto& row : rows) {
      const auto bounds = row.get(shown_).bounds();
      series_.push_back(
          Families<prometheus::Histogram>(*registry, row.name, row.help, labels, compat)
              .Get(LabelsOf(row, engine),
                   prometheus::Histogram::BucketBoundaries(bounds.begin(), bounds.end())));
    }
  }

  // The engine began anew: what it counts is added to what it did before.
  void Restart() { shown_ = Stats(); }
  // Ends its series.
  void Remove() {
    for (auto& series : series_) series.Remove();
  }

  void Show(const Stats& now) {
    // A reader that comes late brings an older state; histograms never go back.
    for (const auto& row : rows_) {
      if (NumObserved(row.get(now)) < NumObserved(row.get(shown_))) return;
    }
    for (size_t i = 0; i < rows_.size(); ++i) {
      const StatHistogram& after = rows_[i].get(now);
      const StatHistogram& before = rows_[i].get(shown_);
      std::vector<double> added;
      for (size_t j = 0; j < after.counts().size(); ++j) {
        added.push_back(static_cast<double>(after.counts()[j] - before.counts()[j]));
      }
      series_[i].ObserveMany(added, after.sum() - before.sum());
    }
    shown_ = now;
  }

 private:
  static int64_t NumObserved(const StatHistogram& h) {
    return std::accumulate(h.counts().begin(), h.counts().end(), int64_t{0});
  }

  std::span<const HistogramRow<Stats>> rows_;
  std::vector<Series<prometheus::Histogram>> series_;
  Stats shown_{};
};

}  // namespace deepinfer
