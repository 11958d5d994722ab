// Series of prometheus-cpp under all the names they are exported as (server/metrics_compat.h).
// Thread rule: any thread. Included by the two files that define series only.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/metrics_compat.h"

namespace deepinfer {

using MetricLabels = prometheus::Labels;

// One series under all names it is exported as.
template <typename T>
class Series {
 public:
  void Add(prometheus::Family<T>& family, T& part) { parts_.emplace_back(&family, &part); }
  bool empty() const { return parts_.empty(); }
  // Ends the series: it is exported no more.
  void Remove() {
    for (const auto& [family, part] : parts_) family->Remove(part);
    parts_.clear();
  }
  void Increment(double value = 1) {
    for (const auto& [family, part] : parts_) part->Increment(value);
  }
  void Set(double value) {
    for (const auto& [family, part] : parts_) part->Set(value);
  }
  void Observe(double value) {
    for (const auto& [family, part] : parts_) part->Observe(value);
  }
  // counts: one more than the bounds of the histogram.
  void ObserveMany(const std::vector<double>& counts, double sum) {
    for (const auto& [family, part] : parts_) part->ObserveMultiple(counts, sum);
  }

 private:
  std::vector<std::pair<prometheus::Family<T>*, T*>> parts_;
};

template <typename T>
class Families {
 public:
  Families(prometheus::Registry& registry, std::string_view name, const std::string& help,
           const MetricLabels& labels, MetricsCompat compat) {
    for (const std::string& exported : ExportedNames(name, compat)) {
      parts_.push_back(
          &prometheus::detail::Builder<T>().Name(exported).Help(help).Labels(labels).Register(
              registry));
    }
  }
  template <typename... Args>
  Series<T> Get(const MetricLabels& labels, const Args&... args) {
    Series<T> series;
    for (prometheus::Family<T>* part : parts_) series.Add(*part, part->Add(labels, args...));
    return series;
  }

 private:
  std::vector<prometheus::Family<T>*> parts_;
};

}  // namespace deepinfer
