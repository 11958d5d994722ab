#include "sched/step_time_model.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <vector>

#include "sched/limits.h"

namespace deepinfer {

namespace {

// Start of the covariance: large against any coefficient in µs per scaled feature.
constexpr double kInitialVariance = 1e12;
// Below this relative error nothing is an outlier: timers and caches are not steadier.
constexpr double kSmallError = 0.01;
// Weight of one step in the running means.
constexpr double kSmoothing = 0.05;
// After so many "outliers" in a row the machine has changed, not the step.
constexpr int32_t kAcceptAfter = 8;
constexpr std::string_view kTextHeader = "step_time_model_v1";

double Blend(double old_value, double sample, bool first) {
  return first ? sample : old_value + kSmoothing * (sample - old_value);
}

}  // namespace

// Scaled so that typical values are near 1 and the covariance stays well conditioned.
StepTimeModel::Vector StepTimeModel::Features(const StepRows& r) {
  return {1.0,
          static_cast<double>(r.prefill_rows) / 128.0,
          r.index_pairs / 1e6,
          static_cast<double>(r.tail_rows) / 128.0,
          static_cast<double>(r.image_patches) / 128.0,
          static_cast<double>(r.decode_rows) / 8.0,
          r.decode_context / 1e5,
          static_cast<double>(r.max_context) / 1e5};
}

double StepTimeModel::Predict(const StepRows& rows) const {
  if (num_observations_ == 0) return 0.0;
  if (num_observations_ < kMinObservations) return us_per_flop_ * rows.flops;
  const Vector x = Features(rows);
  double sum = 0.0;
  for (size_t i = 0; i < kTerms; ++i) sum += coefficients_[i] * x[i];
  // The linear terms may cross zero outside of what was observed; no step takes no time.
  return sum > 0.0 ? sum : us_per_flop_ * rows.flops;
}

bool StepTimeModel::IsOutlier(double relative_error) {
  const double size = std::abs(relative_error);
  bool outlier = false;
  if (errors_.size() >= static_cast<size_t>(kMinObservations)) {
    std::vector<double> sorted(errors_.begin(), errors_.end());
    const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
    std::nth_element(sorted.begin(), middle, sorted.end());
    outlier = size > kOutlierMads * std::max(*middle, kSmallError);
  }
  outliers_in_a_row_ = outlier ? outliers_in_a_row_ + 1 : 0;
  if (outlier && outliers_in_a_row_ < kAcceptAfter) return true;
  if (outlier) {
    // The machine has changed, not the step: learn anew, from the old coefficients.
    errors_.clear();
    outliers_in_a_row_ = 0;
    ResetCovariance();
  }
  errors_.push_back(size);
  if (errors_.size() > static_cast<size_t>(kResidualWindow)) errors_.pop_front();
  return false;
}

void StepTimeModel::ResetCovariance() {
  covariance_ = {};
  for (size_t i = 0; i < kTerms; ++i) covariance_[i][i] = kInitialVariance;
}

void StepTimeModel::Update(const Vector& x, double residual) {
  Vector gain{};
  double largest = 0.0;
  for (size_t i = 0; i < kTerms; ++i) {
    for (size_t j = 0; j < kTerms; ++j) gain[i] += covariance_[i][j] * x[j];
    largest = std::max(largest, covariance_[i][i]);
  }
  // Terms that never occur would lose all certainty under forgetting.
  const double keep = largest < kInitialVariance ? kForgetting : 1.0;
  double denominator = keep;
  for (size_t i = 0; i < kTerms; ++i) denominator += x[i] * gain[i];
  for (size_t i = 0; i < kTerms; ++i) coefficients_[i] += gain[i] / denominator * residual;
  for (size_t i = 0; i < kTerms; ++i) {
    for (size_t j = 0; j < kTerms; ++j) {
      covariance_[i][j] = (covariance_[i][j] - gain[i] * gain[j] / denominator) / keep;
    }
  }
}

void StepTimeModel::Observe(const StepRows& rows, double measured_us) {
  if (!(measured_us > 0.0) || !std::isfinite(measured_us)) return;
  const bool first = num_observations_ == 0;
  if (first) {
    ResetCovariance();
  } else {
    const double error = std::abs(Predict(rows) - measured_us) / measured_us;
    mape_ = Blend(mape_, std::min(error, 1.0), num_observations_ == 1);
  }
  if (rows.flops > 0) us_per_flop_ = Blend(us_per_flop_, measured_us / rows.flops, first);
  Vector x = Features(rows);
  double predicted = 0.0;
  for (size_t i = 0; i < kTerms; ++i) predicted += coefficients_[i] * x[i];
  ++num_observations_;
  if (IsOutlier((measured_us - predicted) / std::max(predicted, 1.0))) {
    ++num_outliers_;
    return;
  }
  // Relative errors count: a short step is as dear as a long one.
  for (double& v : x) v /= measured_us;
  Update(x, (measured_us - predicted) / measured_us);
}

std::string StepTimeModel::ToText() const {
  std::ostringstream out;
  out.precision(17);
  out << kTextHeader << ' ' << us_per_flop_;
  for (double c : coefficients_) out << ' ' << c;
  return out.str();
}

Result<StepTimeModel> StepTimeModel::FromText(const std::string& text) {
  std::istringstream in(text);
  std::string header;
  StepTimeModel model;
  in >> header >> model.us_per_flop_;
  bool ok = header == kTextHeader && model.us_per_flop_ >= 0.0;
  model.ResetCovariance();
  for (double& c : model.coefficients_) {
    in >> c;
    ok = ok && std::isfinite(c);
  }
  if (!ok || in.fail()) return InvalidRequest("not a stored step-time model");
  model.num_observations_ = kMinObservations;
  return model;
}

}  // namespace deepinfer
