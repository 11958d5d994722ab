// Shapes and short-hands of the scheduler tests.
// Thread rule: test thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "sched/planner.h"

namespace deepinfer {

// The released model, in numbers (model.md §2).
inline CostShape ReleasedShape() {
  CostShape s;
  s.decoder_start = 20;
  s.dim = 5120;
  s.heads = 64;
  s.head_dim = 512;
  s.q_lora = 1280;
  s.o_groups = 8;
  s.o_lora = 1024;
  s.moe_inter = 2304;
  s.num_experts = 384;
  s.experts_per_token = 6;
  s.hc_mult = 4;
  s.window = 128;
  s.engram_width = 6144;
  s.vocab = 129280;
  s.index_heads = 32;
  s.index_head_dim = 128;
  s.index_topk = 512;
  s.layers.resize(40);
  for (int32_t l = 2; l < 40; ++l) s.layers[static_cast<size_t>(l)].ratio = l < 20 ? 2 : 1;
  for (size_t l : {2, 8, 14, 20}) s.layers[l].kv_source = s.layers[l].index_source = true;
  for (size_t l : {24, 28, 32, 36}) {
    s.layers[l].index_source = true;
    s.layers[l].index_cap = 16384;
  }
  for (size_t l : {1, 14}) s.layers[l].engram = true;
  return s;
}

// True times of a made-up machine, in µs: cheap to compute and linear in the features the model
// learns.
inline double MachineUs(const StepRows& r) {
  return 900.0 + 40.0 * static_cast<double>(r.prefill_rows) + 2e-4 * r.index_pairs +
         35.0 * static_cast<double>(r.tail_rows) + 400.0 * static_cast<double>(r.decode_rows) +
         2e-3 * r.decode_context;
}

// A cost model that has seen enough steps of that machine.
class LearnedCost {
 public:
  LearnedCost() : flops_(ReleasedShape()) {
    uint64_t x = 12345;
    const auto next = [&x](uint64_t below) {
      x = x * 6364136223846793005u + 1442695040888963407u;
      return static_cast<int64_t>((x >> 33) % below);
    };
    const CostModel cost = model();
    for (int i = 0; i < 200; ++i) {
      StepRows rows;
      const int64_t start = next(20000);
      if (i % 3 != 0) cost.AddPrefill(start, start + 1 + next(512), start + next(700), &rows);
      for (int64_t n = i % 4 == 1 ? 0 : next(12); n > 0; --n) cost.AddDecode(next(20000), 1, &rows);
      if (rows.flops > 0) time_.Observe(rows, MachineUs(rows));
    }
  }

  CostModel model() const { return {&flops_, &time_}; }
  const StepTimeModel& time() const { return time_; }

 private:
  FlopModel flops_;
  StepTimeModel time_;
};

inline DecodeInput Decoding(int64_t id, int32_t next) {
  DecodeInput d;
  d.holding.id = id;
  d.next = next;
  d.holding.held_blocks = (next + kPlanBlockTokens) / kPlanBlockTokens;
  d.holding.total_blocks = d.holding.held_blocks + 1;
  d.holding.computed_tokens = next;
  d.holding.predicted_remaining_us = 10'000'000;
  return d;
}

inline PrefillInput Waiting(int64_t id, int32_t length, int64_t arrival_us = 0) {
  PrefillInput c;
  c.holding.id = id;
  c.holding.total_blocks = (length + kPlanBlockTokens) / kPlanBlockTokens;
  c.holding.predicted_remaining_us = 10'000'000;
  c.arrival_us = arrival_us;
  c.end = length;
  c.decoder_from = std::max(0, length - 140);
  return c;
}

inline PrefillInput Continuing(int64_t id, int32_t next, int32_t length) {
  PrefillInput c = Waiting(id, length);
  c.next = next;
  c.admitted = true;
  c.holding.held_blocks = (next + kPlanBlockTokens - 1) / kPlanBlockTokens;
  return c;
}

inline PlannerSnapshot Snapshot(int32_t free_blocks = 1000, int32_t free_slots = 16) {
  PlannerSnapshot s;
  s.now_us = 1'000'000;
  s.pool.free_blocks = free_blocks;
  s.pool.free_slots = free_slots;
  return s;
}

}  // namespace deepinfer
