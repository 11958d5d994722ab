// Predicted time of a step from the rows in it, learned from measured steps (architecture.md §7).
//
// t = a0 + a1·prefill rows + a2·index pairs + a3·tail rows + a4·image patches + c1·decode rows
//   + c2·Σ decode context + c3·longest context, by recursive least squares with forgetting.
// Thread rule: one owner; Predict is const.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <string>

#include "base/result.h"

namespace deepinfer {

// What a step computes, as far as its time depends on it.
struct StepRows {
  int64_t prefill_rows = 0;
  int64_t tail_rows = 0;  // prefill rows that also run the decoder
  int64_t decode_rows = 0;
  int64_t image_patches = 0;
  double index_pairs = 0;     // of prefill rows
  double decode_context = 0;  // Σ positions of decode rows
  int64_t max_context = 0;
  double flops = 0;            // exact count of FlopModel
  double attention_flops = 0;  // of these
};

class StepTimeModel {
 public:
  static constexpr size_t kTerms = 8;

  // Microseconds; 0 while nothing was observed.
  double Predict(const StepRows& rows) const;

  // Learns one measured step. Outliers (a page fault, a preempted thread) are dropped.
  void Observe(const StepRows& rows, double measured_us);

  int64_t num_observations() const { return num_observations_; }
  int64_t num_outliers() const { return num_outliers_; }
  // Mean absolute relative error of recent predictions, made before their step ran.
  double mape() const { return mape_; }
  const std::array<double, kTerms>& coefficients() const { return coefficients_; }

  // One line of text that FromText reads back; invalid_request for anything else. Kept between
  // starts so that a new process predicts at once.
  std::string ToText() const;
  static Result<StepTimeModel> FromText(const std::string& text);

 private:
  using Vector = std::array<double, kTerms>;

  static Vector Features(const StepRows& rows);
  // Judges the error relative to the prediction.
  bool IsOutlier(double relative_error);
  void Update(const Vector& x, double residual);
  void ResetCovariance();

  Vector coefficients_{};
  std::array<Vector, kTerms> covariance_{};
  std::deque<double> errors_;  // relative and absolute, most recent last
  double us_per_flop_ = 0;
  double mape_ = 0;
  int64_t num_observations_ = 0;
  int64_t num_outliers_ = 0;
  int32_t outliers_in_a_row_ = 0;
};

}  // namespace deepinfer
