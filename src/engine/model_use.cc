#include "engine/model_use.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

namespace deepinfer {

namespace {

// What is left of a step in the rate once another one ran: some fifty steps count.
constexpr double kFading = 0.98;

// Busiest over mean, mean over the layers that had rows; 0 without any.
double MaxOverMean(std::span<const int64_t> rows, size_t num_experts) {
  double sum = 0.0;
  int64_t num_layers = 0;
  for (size_t first = 0; first < rows.size(); first += num_experts) {
    const auto layer = rows.subspan(first, num_experts);
    const int64_t total = std::accumulate(layer.begin(), layer.end(), int64_t{0});
    if (total == 0) continue;
    const auto busiest = static_cast<double>(*std::max_element(layer.begin(), layer.end()));
    sum += busiest * static_cast<double>(num_experts) / static_cast<double>(total);
    ++num_layers;
  }
  return num_layers > 0 ? sum / static_cast<double>(num_layers) : 0.0;
}

}  // namespace

void ModelUse::Note(const StepJob& job, EngineStatistics* statistics) {
  NoteExperts(job.expert_rows, statistics);
  flops_ = kFading * flops_ + job.rows.flops;
  seconds_ = kFading * seconds_ + static_cast<double>(job.model_us) * 1e-6;
  if (seconds_ > 0.0) statistics->flops_per_second = std::llround(flops_ / seconds_);
}

void ModelUse::NoteExperts(const std::vector<int32_t>& rows, EngineStatistics* statistics) {
  expert_rows_.resize(std::max(expert_rows_.size(), rows.size()));
  for (size_t i = 0; i < rows.size(); ++i) expert_rows_[i] += rows[i];
  if (++num_steps_ < kWindowSteps) return;
  const double load = MaxOverMean(expert_rows_, static_cast<size_t>(num_experts_));
  statistics->expert_load_milli = std::llround(1e3 * load);
  std::fill(expert_rows_.begin(), expert_rows_.end(), 0);
  num_steps_ = 0;
}

}  // namespace deepinfer
