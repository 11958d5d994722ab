#include "engine/actions/take_over.h"

#include <algorithm>

#include "engine/actions/load_hit.h"
#include "engine/actions/load_stored.h"
#include "engine/cut_rows.h"
#include "engine/state_image.h"

namespace deepinfer {

Status CheckResumePoint(const EngineState& state, const EngineRequest& request) {
  if (!request.resume) return OkStatus();
  const ResumePoint& from = *request.resume;
  const auto prompt = static_cast<int64_t>(request.prompt_ids.size());
  DI_RETURN_IF_ERROR(ValidateOrigin(from.origin, request.prompt_ids.size()));
  if (from.image.empty()) return OkStatus();
  bool fits = false;
  if (!from.ids.empty()) {
    // The row of the last token is still to run.
    const int64_t decided = prompt + static_cast<int64_t>(from.ids.size()) - 1;
    fits = from.positions == decided && from.num_cut_rows == 0;
  } else {
    // Rows of the decoder tail run here, all of them.
    const int32_t origin = DecoderOrigin(state, request);
    fits = from.num_cut_rows == 0
               ? from.positions > 0 && from.positions == origin
               : from.positions == prompt && from.num_cut_rows == prompt - origin;
  }
  if (!fits) {
    return InvalidRequest("the image of the sequence ends at position " +
                          std::to_string(from.positions) + " with " +
                          std::to_string(from.num_cut_rows) +
                          " rows at the cut, which is not where this engine goes on");
  }
  const Model& model = *state.model;
  const int64_t want = LayoutOfImage(model.layout(), from.positions).size_bytes() +
                       from.num_cut_rows * CutRowBytes(model);
  const auto got = static_cast<int64_t>(from.image.size());
  if (got == want) return OkStatus();
  return InvalidRequest("the image of the sequence has " + std::to_string(got) + " bytes, " +
                        std::to_string(from.positions) + " positions take " + std::to_string(want));
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
  SetTail(state, s);
  SequenceCache& c = s.cache;
  const bool has_image = !from.image.empty();
  if (!from.ids.empty()) {
    s.launched = s.computed = device.next = s.prompt_len + s.num_generated - 1;
  } else {
    s.launched = s.computed = from.num_cut_rows > 0 ? c.decoder_origin : from.positions;
  }
  c.image_positions = has_image ? from.positions : 0;
  if (from.num_cut_rows > 0) {
    const int64_t cut_bytes = from.num_cut_rows * CutRowBytes(*state.model);
    const size_t rest = from.image.size() - static_cast<size_t>(cut_bytes);
    device.cut_rows = ReadCutRows(*state.model, std::span(from.image).subspan(rest));
    from.image.resize(rest);
  }
  c.first_row = from.origin.first_row;
  c.window_floor = c.first_floor = from.origin.window_floor;
  // An exact replay is whole before the decoder begins, where this engine goes on at the earliest.
  const bool is_clamped = c.first_row > 0 && c.first_floor == c.first_row;
  c.whole_from = c.first_row + (is_clamped ? state.memory->geometry().window : 0);
  c.replay_gen = static_cast<uint16_t>(from.origin.replay_gen);
  const int32_t known = std::max(s.computed, c.image_positions);
  s.counted = std::min(known, s.prompt_len);
  c.write_from = known;
  c.num_published = known / kBlockTokens;
  c.chain.Extend({device.tokens.get(), static_cast<size_t>(c.num_published) * kBlockTokens}, {});

  const int64_t now_us = state.clock->NowUs();
  s.counters = from.counters;
  s.counters.generated_tokens = s.num_generated;
  s.schedule.started_us = now_us - from.counters.prefill_us;
  s.schedule.prefilled_us = now_us - from.counters.decode_us;
  if (!has_image) {
    s.load.num_expected = std::min(from.num_stored_blocks, c.num_published);
    BeginWaiting(state, s);
    return OkStatus();
  }
  (void)state.memory->swa().PutParkImage(std::to_string(s.id), std::move(from.image), now_us);
  s.state = SequenceState::kParked;
  state.parked.push_back(&s);
  return OkStatus();
}

}  // namespace deepinfer
