// Which rows a prefill must run after a prefix hit, because the window state of the hit is not
// stored (kv_format.md §8, model.md §13.2).
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <optional>

namespace deepinfer {

enum class ReplayMode : uint8_t {
  kBounded,  // one window of rows again: cheap, approximate, counted in replay_gen
  kExact,    // enough rows that the state equals the uninterrupted one bit for bit
};

// Accepts every replay_gen.
inline constexpr uint16_t kAnyReplayGen = 65535;

struct ReplayGeometry {
  int32_t window = 0;               // tokens
  int32_t keep_rows = 0;            // decoder rows of a prompt's tail
  int32_t encoder_layers = 0;       // layers below the decoder
  int64_t max_snapshot_gap = 1024;  // a snapshot further below the hit costs more than a replay
};

struct ReplayInput {
  int64_t prompt_tokens = 0;    // L
  int64_t hit_tokens = 0;       // H, whole blocks
  uint16_t hit_replay_gen = 0;  // largest of the blocks of the hit
  std::optional<int64_t> snapshot_edge =
      std::nullopt;  // of the snapshot to restore, if there is one
  uint16_t snapshot_replay_gen = 0;
};

struct ReplayPlan {
  int64_t first_row = 0;     // s: rows [s, L) run
  int64_t window_clamp = 0;  // v: no window key below v is read
  bool uses_snapshot = false;
  // Windows that end here or behind hold all that rows read of them, of replay_gen: what is
  // kept of window state begins here.
  int64_t whole_from = 0;
  uint16_t replay_gen = 0;      // of the blocks written from here on
  int64_t cached_tokens = 0;    // s on a hit, else 0
  int64_t replayed_tokens = 0;  // H - s on a hit, else 0
};

// Highest edge at which a snapshot is useful: B = max(0, min(H, L - keep_rows)).
int64_t SnapshotBound(const ReplayGeometry& geometry, int64_t prompt_tokens, int64_t hit_tokens);

// hit_tokens <= prompt_tokens. A snapshot that lies above the bound or too far below it is ignored.
ReplayPlan PlanReplay(const ReplayGeometry& geometry, ReplayMode mode, const ReplayInput& input);

}  // namespace deepinfer
