#include "sched/verify_calibration.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace deepinfer {
namespace {

// Drafts whose true chance is that of their logit at a temperature of its own.
std::vector<ConfidenceSample> SamplesWith(const std::vector<double>& temperatures, int count,
                                          uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> logit(0.8f, 2.0f);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  std::vector<ConfidenceSample> samples;
  for (int i = 0; i < count; ++i) {
    ConfidenceSample s;
    bool alive = true;
    for (const double t : temperatures) {
      s.logits.push_back(logit(random));
      alive = alive && uniform(random) < CalibratedConfidence(s.logits.back(), t);
      s.num_accepted += alive;
    }
    samples.push_back(std::move(s));
  }
  return samples;
}

TEST(VerifyCalibration, ConfidenceIsTheClampedSigmoid) {
  EXPECT_DOUBLE_EQ(CalibratedConfidence(0.0, 3.0), 0.5);
  EXPECT_DOUBLE_EQ(CalibratedConfidence(2.0, 2.0), 1.0 / (1.0 + std::exp(-1.0)));
  EXPECT_GT(CalibratedConfidence(-1e30, 1.0), 0.0);
  EXPECT_EQ(CalibratedConfidence(1e30, 1.0), CalibratedConfidence(60.0, 1.0));
}

TEST(VerifyCalibration, ReliabilityCountsTheSamplesThatVerifiedTheDraft) {
  const std::vector<ConfidenceSample> samples = {
      {{0.0f, 0.0f}, 2}, {{0.0f, 0.0f}, 1}, {{0.0f}, 1}, {{0.0f, 60.0f}, 0}};
  const std::vector<double> ones = {1.0, 1.0};
  const Reliability first = MeasureReliability(samples, ones, 1);
  EXPECT_EQ(first[10].count, 4);
  EXPECT_DOUBLE_EQ(first[10].mean_predicted, 0.5);
  EXPECT_DOUBLE_EQ(first[10].share_accepted, 0.75);
  EXPECT_DOUBLE_EQ(CalibrationError(first), 0.25);
  const Reliability second = MeasureReliability(samples, ones, 2);
  EXPECT_EQ(second[5].count, 2);
  EXPECT_DOUBLE_EQ(second[5].share_accepted, 0.5);
  EXPECT_EQ(second[10].count + second[9].count, 1);
  EXPECT_DOUBLE_EQ(MeanCalibrationError(samples, ones),
                   (CalibrationError(first) + CalibrationError(second)) / 2);
}

TEST(VerifyCalibration, TheFitFindsTheTemperaturesAndHoldsOnOtherSamples) {
  const std::vector<double> truth = {0.6, 1.0, 1.7, 2.5, 1.2};
  const auto fitted_on = SamplesWith(truth, 20'000, 1);
  const auto other = SamplesWith(truth, 20'000, 2);
  const std::vector<double> fit = FitTemperatures(fitted_on, truth.size());
  ASSERT_EQ(fit.size(), truth.size());
  // Few samples survive to the last drafts, so their temperatures are known less well.
  for (size_t k = 0; k < truth.size(); ++k) {
    EXPECT_NEAR(fit[k] / truth[k], 1.0, k < 3 ? 0.2 : 0.5) << k;
  }
  const std::vector<double> ones(truth.size(), 1.0);
  EXPECT_LT(MeanCalibrationError(other, fit), 0.02);
  EXPECT_GT(MeanCalibrationError(other, ones), 2 * MeanCalibrationError(other, fit));
}

TEST(VerifyCalibration, WithoutSamplesTemperaturesAreOne) {
  EXPECT_EQ(FitTemperatures({}, 3), (std::vector<double>{1.0, 1.0, 1.0}));
  const std::vector<ConfidenceSample> short_ones = {{{2.0f}, 1}, {{-2.0f}, 0}};
  EXPECT_EQ(FitTemperatures(short_ones, 2)[1], 1.0);
  EXPECT_EQ(CalibrationError(Reliability{}), 0.0);
}

}  // namespace
}  // namespace deepinfer
