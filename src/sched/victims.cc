#include "sched/victims.h"

namespace deepinfer {

namespace {

bool Spared(const Holding& h, int64_t now_us) {
  return now_us - h.last_parked_us < kParkAgainUs || h.predicted_remaining_us < kParkMinRemainingUs;
}

// Whether a should be parked rather than b.
bool IsBetterVictim(const Holding& a, const Holding& b, int64_t now_us) {
  const bool spared_a = Spared(a, now_us), spared_b = Spared(b, now_us);
  if (spared_a != spared_b) return spared_b;
  if (a.request_class != b.request_class) return a.request_class > b.request_class;
  if (a.computed_tokens != b.computed_tokens) return a.computed_tokens < b.computed_tokens;
  return a.id > b.id;
}

}  // namespace

const Holding* ChooseVictim(std::span<const Holding* const> holders, int64_t now_us) {
  const Holding* victim = nullptr;
  for (const Holding* h : holders) {
    if (!h->can_park || h->held_blocks == 0) continue;
    if (victim == nullptr || IsBetterVictim(*h, *victim, now_us)) victim = h;
  }
  return victim;
}

}  // namespace deepinfer
