#include "engine/actions/take_over.h"

#include <algorithm>

#include "engine/actions/load_hit.h"

namespace deepinfer {

namespace {

// The row of the last token is still to run.
int32_t ComputedPositions(const EngineRequest& request) {
  return static_cast<int32_t>(request.prompt_ids.size() + request.resume->ids.size()) - 1;
}

}  // namespace

Status CheckResumePoint(const KvLayout& layout, const EngineRequest& request) {
  if (!request.resume || request.resume->image.empty()) return OkStatus();
  const int64_t want =
      layout.slot_bytes + KvLayout::NumBlocks(ComputedPositions(request)) * layout.block_bytes;
  const auto got = static_cast<int64_t>(request.resume->image.size());
  if (got == want) return OkStatus();
  return InvalidRequest("the image of the sequence has " + std::to_string(got) +
                        " bytes, its positions take " + std::to_string(want));
}

Status TakeOver(EngineState& state, Sequence& s) {
  ResumePoint from = *std::move(s.request.resume);
  s.request.resume.reset();
  PrepareDevice(state, s);
  DeviceRows& device = s.device;
  std::copy(from.ids.begin(), from.ids.end(), device.tokens.get() + s.prompt_len);
  for (const int32_t id : from.ids) {
    device.sampler->Commit(id);
    if (device.constraint) DI_RETURN_IF_ERROR(device.constraint->Commit(id));
  }
  s.num_generated = device.num_decided = static_cast<int32_t>(from.ids.size());
  s.launched = s.computed = device.next = s.prompt_len + s.num_generated - 1;

  SetTail(state, s);
  SequenceCache& c = s.cache;
  c.first_row = from.origin.first_row;
  c.window_floor = c.first_floor = from.origin.window_floor;
  c.replay_gen = static_cast<uint16_t>(from.origin.replay_gen);
  c.write_from = s.computed;
  c.num_published = s.computed / kBlockTokens;
  c.chain.Extend({device.tokens.get(), static_cast<size_t>(c.num_published) * kBlockTokens}, {});

  const int64_t now_us = state.clock->NowUs();
  s.counters = from.counters;
  s.counters.generated_tokens = s.num_generated;
  s.schedule.started_us = now_us;
  s.schedule.prefilled_us = now_us - from.counters.decode_us;
  if (!from.image.empty()) {
    (void)state.memory->swa().PutParkImage(std::to_string(s.id), std::move(from.image), now_us);
  }
  s.state = SequenceState::kParked;
  state.parked.push_back(&s);
  return OkStatus();
}

}  // namespace deepinfer
