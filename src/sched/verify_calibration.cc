#include "sched/verify_calibration.h"

#include <algorithm>
#include <cmath>

namespace deepinfer {

namespace {

// Keeps the exponential finite (dspark.md §7).
constexpr double kMaxConfidenceLogit = 60.0;
// The search covers temperatures from 1/16 to 16: first in steps of 2^(1/4), then around the best
// one in steps of 2^(1/64), finer than samples can tell apart.
constexpr int kCoarseSteps = 16;
constexpr int kFineSteps = 16;
constexpr double kCoarseStep = 0.25;
constexpr double kFineStep = 1.0 / 64;

void Fill(const ConfidenceSample& sample, double survival, size_t k, Reliability* bins) {
  const auto index = static_cast<size_t>(survival * static_cast<double>(kReliabilityBins));
  ReliabilityBin& bin = (*bins)[std::min(index, kReliabilityBins - 1)];
  ++bin.count;
  bin.mean_predicted += survival;
  bin.share_accepted += sample.num_accepted >= static_cast<int32_t>(k);
}

// Sums become means.
void Divide(Reliability* bins) {
  for (ReliabilityBin& bin : *bins) {
    if (bin.count == 0) continue;
    bin.mean_predicted /= static_cast<double>(bin.count);
    bin.share_accepted /= static_cast<double>(bin.count);
  }
}

}  // namespace

double CalibratedConfidence(double raw, double temperature) {
  const double z = std::clamp(raw / temperature, -kMaxConfidenceLogit, kMaxConfidenceLogit);
  return 1.0 / (1.0 + std::exp(-z));
}

Reliability MeasureReliability(std::span<const ConfidenceSample> samples,
                               std::span<const double> temperatures, size_t k) {
  Reliability bins{};
  for (const ConfidenceSample& sample : samples) {
    if (sample.logits.size() < k) continue;
    double survival = 1.0;
    for (size_t i = 0; i < k; ++i) {
      survival *= CalibratedConfidence(static_cast<double>(sample.logits[i]), temperatures[i]);
    }
    Fill(sample, survival, k, &bins);
  }
  Divide(&bins);
  return bins;
}

double CalibrationError(const Reliability& reliability) {
  double sum = 0;
  int64_t total = 0;
  for (const ReliabilityBin& bin : reliability) {
    sum += static_cast<double>(bin.count) * std::abs(bin.mean_predicted - bin.share_accepted);
    total += bin.count;
  }
  return total == 0 ? 0.0 : sum / static_cast<double>(total);
}

double MeanCalibrationError(std::span<const ConfidenceSample> samples,
                            std::span<const double> temperatures) {
  double sum = 0;
  for (size_t k = 1; k <= temperatures.size(); ++k) {
    sum += CalibrationError(MeasureReliability(samples, temperatures, k));
  }
  return temperatures.empty() ? 0.0 : sum / static_cast<double>(temperatures.size());
}

std::vector<double> FitTemperatures(std::span<const ConfidenceSample> samples, size_t num_drafts) {
  std::vector<double> temperatures;
  for (size_t k = 1; k <= num_drafts; ++k) {
    // Survivals of the drafts before it are fixed.
    std::vector<double> before;
    std::vector<const ConfidenceSample*> verified;
    for (const ConfidenceSample& sample : samples) {
      if (sample.logits.size() < k) continue;
      double survival = 1.0;
      for (size_t i = 0; i + 1 < k; ++i) {
        survival *= CalibratedConfidence(static_cast<double>(sample.logits[i]), temperatures[i]);
      }
      before.push_back(survival);
      verified.push_back(&sample);
    }
    double best = 0, best_error = 2;
    const auto look = [&](double exponent) {
      Reliability bins{};
      for (size_t i = 0; i < verified.size(); ++i) {
        const auto raw = static_cast<double>(verified[i]->logits[k - 1]);
        Fill(*verified[i], before[i] * CalibratedConfidence(raw, std::exp2(exponent)), k, &bins);
      }
      Divide(&bins);
      const double error = CalibrationError(bins);
      const bool nearer = error == best_error && std::abs(exponent) < std::abs(best);
      if (error < best_error || nearer) best = exponent, best_error = error;
    };
    for (int i = -kCoarseSteps; i <= kCoarseSteps; ++i) look(i * kCoarseStep);
    const double middle = best;
    for (int i = -kFineSteps; i <= kFineSteps; ++i) look(middle + i * kFineStep);
    temperatures.push_back(std::exp2(best));
  }
  return temperatures;
}

}  // namespace deepinfer
