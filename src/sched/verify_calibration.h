// Calibration of the confidence head: sequential temperature scaling, so that the product of the
// first k confidences is the chance that k drafts are accepted (dspark.md §7).
// Thread rule: pure functions of their arguments.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace deepinfer {

// One verification: raw confidences (logits) of the drafts that were verified, and how many of them
// were accepted.
struct ConfidenceSample {
  std::vector<float> logits;
  int32_t num_accepted = 0;
};

// c = sigmoid(clamp(raw / temperature, -60, 60)).
double CalibratedConfidence(double raw, double temperature);

// Samples by the survival that was predicted for their first k drafts, in bins of equal width.
constexpr size_t kReliabilityBins = 20;
struct ReliabilityBin {
  int64_t count = 0;
  double mean_predicted = 0;  // survival
  double share_accepted = 0;  // of the samples: at least k drafts were
};
using Reliability = std::array<ReliabilityBin, kReliabilityBins>;

// Of draft k (from 1), over the samples that verified it. temperatures: of drafts 1..k, at least.
Reliability MeasureReliability(std::span<const ConfidenceSample> samples,
                               std::span<const double> temperatures, size_t k);

// Expected calibration error: the mean distance of prediction and share over the bins, weighted by
// their samples; 0 without any.
double CalibrationError(const Reliability& reliability);
// Its mean over drafts 1..temperatures.size().
double MeanCalibrationError(std::span<const ConfidenceSample> samples,
                            std::span<const double> temperatures);

// One temperature for each of num_drafts, left to right: each minimises the calibration error of
// the survival of its draft, with those before it fixed; the one nearest to 1 on ties. A draft
// that no sample verified keeps 1.
std::vector<double> FitTemperatures(std::span<const ConfidenceSample> samples, size_t num_drafts);

}  // namespace deepinfer
