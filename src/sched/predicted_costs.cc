#include "sched/predicted_costs.h"

#include <algorithm>

#include "sched/limits.h"
#include "sched/planner.h"

namespace deepinfer {

namespace {

// A prompt of so many chunks shows how the cost of a row grows; longer ones follow the same curve.
constexpr int64_t kMostChunks = 16;
// Rows of a decode step at which its slope is taken.
constexpr int64_t kManyRows = 8;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// One step with rows [start, end) of a prompt, the last tail_rows of which run the decoder.
double ChunkUs(const CostModel& model, int64_t start, int64_t end, int64_t tail_rows) {
  StepRows rows;
  model.AddPrefill(start, end, end - tail_rows, &rows);
  return model.time->Predict(rows);
}

double DecodeUs(const CostModel& model, int64_t position, int64_t num_sequences) {
  StepRows rows;
  for (int64_t i = 0; i < num_sequences; ++i) model.AddDecode(position, 1, &rows);
  return model.time->Predict(rows);
}

void PredictPrompts(const CostModel& model, const PromptSteps& steps, PredictedCosts* costs) {
  const int64_t chunk = std::min(steps.chunk_rows, steps.max_context);
  const int64_t half = std::max<int64_t>(1, chunk / 2);
  const double whole_us = ChunkUs(model, 0, chunk, 0), half_us = ChunkUs(model, 0, half, 0);
  double row_us = whole_us / static_cast<double>(chunk);
  if (chunk > half) {
    row_us = std::clamp((whole_us - half_us) / static_cast<double>(chunk - half), 0.0, row_us);
  }
  costs->prompt_us_per_step = std::max(0.0, whole_us - row_us * static_cast<double>(chunk));
  // Of the last chunk of a long prompt, whose rows see all of it.
  const int64_t end = std::min(kMostChunks * chunk, int64_t{steps.max_context}),
                start = end - chunk;
  if (start > 0) {
    const double more_us = ChunkUs(model, start, end, 0) - whole_us;
    costs->prompt_us_per_square =
        std::max(0.0, more_us / (2.0 * static_cast<double>(chunk) * static_cast<double>(start)));
  }
  costs->prompt_us_per_token =
      std::max(0.0, row_us - costs->prompt_us_per_square * static_cast<double>(chunk));
  const int64_t tail = std::min<int64_t>(steps.tail_rows, chunk);
  if (tail > 0) {
    costs->tail_us_per_row =
        std::max(0.0, (ChunkUs(model, 0, chunk, tail) - whole_us) / static_cast<double>(tail));
  }
}

}  // namespace

int64_t PredictedCosts::NumSteps(int64_t first, int64_t end) const {
  if (chunk_rows <= 0) return 1;
  const int64_t edge = (end - tail_rows) / kPlanBlockTokens * kPlanBlockTokens;
  if (!cuts_at_tail || edge <= first) return CeilDiv(end - first, chunk_rows);
  return CeilDiv(edge - first, chunk_rows) + CeilDiv(end - edge, chunk_rows);
}

double PredictedCosts::RowsUs(int64_t first, int64_t end) const {
  const auto num_rows = static_cast<double>(end - first);
  if (num_rows <= 0) return 0;
  const double squares = num_rows * static_cast<double>(first + end);
  return static_cast<double>(NumSteps(first, end)) * prompt_us_per_step +
         num_rows * prompt_us_per_token + squares * prompt_us_per_square +
         std::min(num_rows, static_cast<double>(tail_rows)) * tail_us_per_row;
}

double PredictedCosts::PromptUs(const PromptWork& prompt) const {
  const double whole_us = RowsUs(0, prompt.tokens);
  const StoredPrefix& stored = prompt.stored;
  if (stored.first_row <= 0) return whole_us;
  const double loaded_us = load_us + stored.tokens() * load_us_per_token;
  return std::min(whole_us, loaded_us + RowsUs(stored.first_row, prompt.tokens));
}

double PredictedCosts::BacklogUs(const PromptBacklog& backlog) const {
  if (backlog.tokens <= 0) return 0;
  // Rows of several prompts share a step, rows of their tails do not go away.
  const int64_t num_steps = chunk_rows > 0 ? CeilDiv(backlog.tokens, chunk_rows) : 1;
  const int64_t tails = std::min(backlog.tokens, backlog.prompts * tail_rows);
  return static_cast<double>(num_steps) * prompt_us_per_step +
         static_cast<double>(backlog.tokens) * prompt_us_per_token +
         static_cast<double>(backlog.squares) * prompt_us_per_square +
         static_cast<double>(tails) * tail_us_per_row;
}

PredictedCosts PredictCosts(const CostModel& model, const PromptSteps& steps) {
  PredictedCosts costs;
  const int32_t max_context = steps.max_context;
  if (model.time->num_observations() == 0 || steps.chunk_rows <= 0 || max_context <= 1) {
    return costs;
  }
  costs.chunk_rows = steps.chunk_rows;
  costs.tail_rows = steps.tail_rows;
  costs.cuts_at_tail = steps.cuts_at_tail;
  PredictPrompts(model, steps, &costs);
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
