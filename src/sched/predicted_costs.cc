#include "sched/predicted_costs.h"

#include <algorithm>

#include "sched/planner.h"

namespace deepinfer {

namespace {

// Prompts of so many chunks show how their cost grows; longer ones follow the same curve.
constexpr int32_t kMostChunks = 16;
// Rows of a decode step at which its slope is taken.
constexpr int64_t kManyRows = 8;

double PromptUs(const CostModel& model, int32_t length, int32_t chunk_rows) {
  double sum = 0;
  for (int32_t start = 0; start < length; start += chunk_rows) {
    StepRows rows;
    model.AddPrefill(start, std::min(start + chunk_rows, length), length, &rows);
    sum += model.time->Predict(rows);
  }
  return sum;
}

double DecodeUs(const CostModel& model, int64_t position, int64_t num_sequences) {
  StepRows rows;
  for (int64_t i = 0; i < num_sequences; ++i) model.AddDecode(position, 1, &rows);
  return model.time->Predict(rows);
}

}  // namespace

PredictedCosts PredictCosts(const CostModel& model, int32_t chunk_rows, int32_t max_context) {
  PredictedCosts costs;
  if (model.time->num_observations() == 0 || chunk_rows <= 0 || max_context <= 1) return costs;
  const int32_t brief = std::min(chunk_rows, max_context);
  const auto longer =
      static_cast<int32_t>(std::min(int64_t{kMostChunks} * chunk_rows, int64_t{max_context}));
  const double brief_each = PromptUs(model, brief, chunk_rows) / brief;
  if (longer > brief) {
    const double long_each = PromptUs(model, longer, chunk_rows) / longer;
    costs.prompt_us_per_square = std::max(0.0, (long_each - brief_each) / (longer - brief));
  }
  costs.prompt_us_per_token = std::max(0.0, brief_each - costs.prompt_us_per_square * brief);
  const double one = DecodeUs(model, 0, 1), many = DecodeUs(model, 0, kManyRows);
  costs.step_us_per_row = std::max(0.0, (many - one) / (kManyRows - 1));
  costs.step_us = std::max(0.0, one - costs.step_us_per_row);
  const int64_t far = max_context - 1;
  const double with_context = DecodeUs(model, far, kManyRows);
  costs.step_us_per_token =
      std::max(0.0, (with_context - many) / static_cast<double>(kManyRows * far));
  costs.error = model.time->mape();
  return costs;
}

}  // namespace deepinfer
