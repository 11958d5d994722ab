// Brings the chunks of several choices into an order clients accept: a choice writes its first
// chunk only after all lower choices wrote theirs (api.md §5 rule 2). What waits is not written
// yet, so that usage in chunks never runs backwards. Thread rule: one object, one thread. Owner:
// one streamed answer.
#pragma once

#include <cstddef>

namespace deepinfer {

class ChoiceOrder {
 public:
  explicit ChoiceOrder(size_t num_choices) : num_choices_(num_choices) {}

  // `choice` has something to say. Calls `write(i)` for it and for those that waited behind it;
  // `write` returns whether choice i has written a chunk by now.
  template <typename Write>
  void Pass(size_t choice, Write&& write) {
    if (choice > num_started_) return;
    bool has_written = write(choice);
    while (has_written && choice == num_started_) {
      ++num_started_;
      if (++choice == num_choices_) break;
      has_written = write(choice);
    }
  }

 private:
  size_t num_choices_;
  size_t num_started_ = 0;  // choices 0..num_started_-1 have written chunks
};

}  // namespace deepinfer
