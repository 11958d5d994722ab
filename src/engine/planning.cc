#include "engine/planning.h"

#include <algorithm>

#include "engine/actions/decode.h"
#include "engine/actions/fork.h"
#include "engine/actions/load_hit.h"
#include "engine/actions/park.h"
#include "engine/actions/prefill.h"
#include "engine/actions/resume.h"
#include "engine/speculation.h"

namespace deepinfer {

namespace {

Holding MakeHolding(const EngineState& state, const Sequence& s) {
  Holding h;
  h.id = s.id;
  h.request_class = s.request.request_class;
  h.held_blocks = s.cache.num_blocks;
  const int32_t positions = s.max_positions(state.options.max_model_len);
  h.total_blocks = static_cast<int32_t>(KvLayout::NumBlocks(positions));
  h.computed_tokens = s.computed - s.cache.first_row;
  h.last_parked_us = s.schedule.last_parked_us;
  const double left = std::max(0, s.prefill_end() - s.launched);
  const double share = left / std::max(1, s.prompt_len);
  h.predicted_remaining_us = static_cast<int64_t>(
      share * static_cast<double>(s.schedule.predicted_prefill_us) +
      state.decode_step_us * (s.request.sampling.max_tokens - s.num_generated));
  return h;
}

DecodeInput MakeDecodeInput(const EngineState& state, const Sequence& s) {
  DecodeInput d;
  d.holding = MakeHolding(state, s);
  const int32_t most = s.max_positions(state.options.max_model_len);
  d.next = std::min(s.launched, most - 1);
  const DecodeRowCount rows = CountDecodeRows(state, s);
  d.num_rows = std::min(rows.most, most - d.next);
  d.timed_rows = std::min(rows.likely, d.num_rows);
  // The tokens that rows in flight decide are known in number before they are known.
  d.can_run = s.schedule.stalled_since_us == 0 && s.request.hand_off == HandOffProfile::kNone &&
              s.num_expected() < s.request.sampling.max_tokens &&
              s.prompt_len + s.num_expected() < state.options.max_model_len;
  return d;
}

PrefillInput MakePrefillInput(EngineState& state, Sequence& s) {
  PrefillInput c;
  c.holding = MakeHolding(state, s);
  c.arrival_us = s.schedule.submitted_us;
  c.deadline_us = FirstTokenDueUs(state, s);
  c.predicted_prefill_us = s.schedule.predicted_prefill_us;
  c.admitted = s.holds_slot();
  c.next = s.launched;
  c.end = s.prefill_end();
  c.decoder_from = s.cost_decoder_from();
  c.only_decoder = s.begins_at_cut();
  c.skipped_steps = s.schedule.skipped_steps;
  c.skipped_since_us = s.schedule.skipped_since_us;
  if (s.state == SequenceState::kQueued) {
    if (!s.schedule.probe.valid) s.schedule.probe = ProbeHit(state, s);
    c.next = static_cast<int32_t>(s.schedule.probe.plan.first_row);
    if (!s.hands_over_undecided()) {
      c.decoder_from = std::max(0, s.prompt_len - state.memory->geometry().keep_rows);
    }
  } else if (s.state == SequenceState::kParked) {
    // Its memory first; rows to run again show once it is back.
    s.schedule.probe = ProbeParked(state, s);
    c.next = c.end = s.image_positions();
  }
  if (!c.admitted) {
    c.hit_blocks = s.schedule.probe.hit_blocks;
    c.hit_idle = s.schedule.probe.hit_idle;
  }
  if (s.state != SequenceState::kParked) c.cuts = PrefillCuts(state, s);
  return c;
}

PlannerSnapshot MakeSnapshot(EngineState& state) {
  PlannerSnapshot snapshot;
  snapshot.now_us = state.clock->NowUs();
  snapshot.memory = state.planner_memory;
  const BlockPoolStats& blocks = state.memory->blocks().stats();
  snapshot.pool.free_blocks = static_cast<int32_t>(blocks.free);
  snapshot.pool.reclaimable_blocks = static_cast<int32_t>(blocks.idle);
  snapshot.pool.free_slots = state.memory->slots().num_free();
  for (Sequence* s : state.active) {
    if (s->state == SequenceState::kParking || IsTerminal(s->state)) {
      snapshot.pool.returning_blocks += s->cache.num_blocks;
    } else if (s->launched >= s->prefill_end()) {
      snapshot.decode.push_back(MakeDecodeInput(state, *s));
    } else {
      snapshot.prefill.push_back(MakePrefillInput(state, *s));
    }
  }
  for (Sequence* s : state.parked) {
    if (s->schedule.stalled_since_us == 0) snapshot.prefill.push_back(MakePrefillInput(state, *s));
  }
  const auto window = static_cast<size_t>(state.limits.max_skips + state.limits.max_sequences);
  for (int64_t id : state.queue.Window(window)) {
    snapshot.prefill.push_back(MakePrefillInput(state, *state.Find(id)));
  }
  return snapshot;
}

void NoteSkipped(EngineState& state, const StepPlan& plan, int64_t now_us) {
  for (int64_t id : plan.skipped) {
    SequenceSchedule& schedule = state.Find(id)->schedule;
    ++schedule.skipped_steps;
    if (schedule.skipped_since_us == 0) schedule.skipped_since_us = now_us;
  }
}

// Slots and shared blocks before anything is allocated: an allocation may reclaim what a hit counts
// on.
void AdmitPlanned(EngineState& state, const StepPlan& plan) {
  for (const PrefillChunk& chunk : plan.prefill) {
    Sequence& s = *state.Find(chunk.id);
    if (s.state == SequenceState::kParked) {
      (void)Resume(state, s);
    } else if (s.state == SequenceState::kQueued && Admit(state, s)) {
      NoteStart(state, s);
    }
  }
}

// With the drafts verified that requests verified lately.
double PredictUs(const EngineState& state, const StepJob& job) {
  StepRows rows = job.rows;
  for (const StepItem& item : job.items) {
    if (!item.is_decode) continue;
    const int32_t num_drafts = std::min(item.max_drafts, UsualDrafts(state));
    state.cost().AddDecode(item.rows.start, 1 + num_drafts, &rows);
  }
  return state.step_time.Predict(rows);
}

}  // namespace

PlannedStep PlanStep(EngineState& state) {
  ForkBranches(state);
  ChooseDrafters(state);
  const PlannerSnapshot snapshot = MakeSnapshot(state);
  const StepPlan plan = Plan(snapshot, state.limits, state.cost());
  state.planner_memory = plan.memory;
  NoteSkipped(state, plan, snapshot.now_us);
  for (int64_t id : plan.park) BeginPark(state, *state.Find(id));
  AdmitPlanned(state, plan);

  auto job = std::make_unique<StepJob>();
  for (const DecodeRows& d : plan.decode) {
    Sequence& s = *state.Find(d.id);
    if (!EnsureBlocks(state, s, FurthestEnd(state, s, d.num_rows))) continue;
    LaunchDecode(state, s, d.num_rows, job.get());
  }
  for (const PrefillChunk& chunk : plan.prefill) {
    Sequence& s = *state.Find(chunk.id);
    // What came back differently than planned is planned again.
    if (!s.holds_slot() || chunk.num_rows == 0 || s.launched != chunk.start) continue;
    const int32_t end = chunk.start + chunk.num_rows;
    if (EnsureBlocks(state, s, end)) LaunchPrefill(state, s, chunk.num_rows, job.get());
  }
  job->copies = std::move(state.copies);
  job->forks = std::move(state.forks);
  state.copies.clear();
  state.forks.clear();
  PlannedStep planned;
  planned.changed_memory = !plan.empty() || !plan.park.empty();
  if (job->items.empty() && job->copies.empty()) return planned;
  PlanDrafts(state, job.get());
  job->predicted_us = PredictUs(state, *job);
  planned.job = std::move(job);
  return planned;
}

}  // namespace deepinfer
