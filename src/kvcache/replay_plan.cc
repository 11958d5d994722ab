#include "kvcache/replay_plan.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace deepinfer {

namespace {

// Of every layout (kv_format.md section 2).
constexpr int64_t kBlockTokens = 128;

}  // namespace

int64_t SnapshotBound(const ReplayGeometry& geometry, int64_t prompt_tokens, int64_t hit_tokens) {
  return std::max<int64_t>(0, std::min(hit_tokens, prompt_tokens - geometry.keep_rows));
}

ReplayPlan PlanReplay(const ReplayGeometry& geometry, ReplayMode mode, const ReplayInput& input) {
  DI_CHECK(input.hit_tokens >= 0 && input.hit_tokens <= input.prompt_tokens);
  ReplayPlan plan;
  if (input.hit_tokens == 0) return plan;
  const int64_t bound = SnapshotBound(geometry, input.prompt_tokens, input.hit_tokens);
  plan.replay_gen = input.hit_replay_gen;

  const bool snapshot_fits = input.snapshot_edge && *input.snapshot_edge > 0 &&
                             *input.snapshot_edge <= bound &&
                             bound - *input.snapshot_edge <= geometry.max_snapshot_gap &&
                             (mode == ReplayMode::kBounded || input.snapshot_replay_gen == 0);
  if (snapshot_fits) {
    plan.uses_snapshot = true;
    plan.first_row = *input.snapshot_edge;
    plan.window_clamp = std::max<int64_t>(0, *input.snapshot_edge - geometry.window);
    plan.replay_gen = std::max(plan.replay_gen, input.snapshot_replay_gen);
    plan.whole_from = plan.first_row;
  } else if (mode == ReplayMode::kExact) {
    // Each layer looks back window - 1 rows, so errors of the clamp die out after that many rows
    // per encoder layer: before an edge, so that the windows there can be kept.
    const int64_t reach = int64_t{geometry.window - 1} * geometry.encoder_layers;
    const int64_t edge = bound / kBlockTokens * kBlockTokens;
    plan.first_row = plan.window_clamp = std::max<int64_t>(0, edge - reach);
    if (plan.first_row > 0) plan.whole_from = edge;
  } else {
    plan.first_row = plan.window_clamp = std::max<int64_t>(
        0, std::min(input.hit_tokens - geometry.window, input.prompt_tokens - geometry.keep_rows));
    // From row 0 on nothing is cut off, so nothing is approximate.
    if (plan.first_row > 0) {
      plan.whole_from = plan.first_row + geometry.window;
      if (plan.replay_gen < std::numeric_limits<uint16_t>::max()) ++plan.replay_gen;
    }
  }
  plan.cached_tokens = std::min(plan.first_row, input.hit_tokens);
  plan.replayed_tokens = input.hit_tokens - plan.cached_tokens;
  return plan;
}

}  // namespace deepinfer
