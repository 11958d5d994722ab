// Rows that the Markov head adds to the logits of drafts, kept by previous token: a row depends on
// nothing else, tokens repeat, and computing one reads the whole head (dspark.md §3).
// Thread rule: step thread. Owner: DraftModel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace deepinfer {

class DraftMarkovRows {
 public:
  // Keeps rows f32 [vocab] up to max_bytes, at least one.
  DraftMarkovRows(int64_t vocab, int64_t max_bytes);

  // The row of a token; nullptr: not kept. Valid until the next Add.
  const float* Find(int32_t id);

  // A row for the token, to be filled; takes the place of the one not asked for the longest.
  // Precondition: Find(id) is nullptr.
  float* Add(int32_t id);

  size_t max_rows() const { return max_rows_; }

 private:
  struct Slot {
    int32_t id = -1;
    uint64_t used = 0;
    std::vector<float> row;
  };

  const size_t vocab_;
  const size_t max_rows_;
  uint64_t clock_ = 0;
  std::vector<Slot> slots_;
  std::unordered_map<int32_t, size_t> slot_of_;
};

}  // namespace deepinfer
