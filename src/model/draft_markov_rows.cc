#include "model/draft_markov_rows.h"

#include <algorithm>

namespace deepinfer {

DraftMarkovRows::DraftMarkovRows(int64_t vocab, int64_t max_bytes)
    : vocab_(static_cast<size_t>(vocab)),
      max_rows_(static_cast<size_t>(std::max<int64_t>(1, max_bytes / (4 * vocab)))) {}

const float* DraftMarkovRows::Find(int32_t id) {
  const auto found = slot_of_.find(id);
  if (found == slot_of_.end()) return nullptr;
  Slot& slot = slots_[found->second];
  slot.used = ++clock_;
  return slot.row.data();
}

float* DraftMarkovRows::Add(int32_t id) {
  size_t index = slots_.size();
  if (index < max_rows_) {
    // A slot without its row must not stay behind when memory is short.
    Slot fresh;
    fresh.row.resize(vocab_);
    slots_.push_back(std::move(fresh));
  } else {
    const auto oldest = std::min_element(
        slots_.begin(), slots_.end(), [](const Slot& a, const Slot& b) { return a.used < b.used; });
    index = static_cast<size_t>(oldest - slots_.begin());
    slot_of_.erase(oldest->id);
  }
  Slot& slot = slots_[index];
  slot.id = id;
  slot.used = ++clock_;
  slot_of_[id] = index;
  return slot.row.data();
}

}  // namespace deepinfer
