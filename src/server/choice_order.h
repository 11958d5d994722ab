// Brings the chunks of several choices into an order clients accept: a choice's first chunk comes
// only after the first chunks of all lower choices (api.md §5 rule 2).
// Thread rule: one object, one thread. Owner: one streamed answer.
#pragma once

#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace deepinfer {

class ChoiceOrder {
 public:
  explicit ChoiceOrder(int32_t num_choices) : held_(static_cast<size_t>(num_choices)) {}

  // Appends to `out` what may go out now: `chunks`, or nothing while a lower choice has sent none.
  void Pass(int32_t choice, std::vector<std::string> chunks, std::vector<std::string>* out) {
    Append(std::move(chunks), &held_[static_cast<size_t>(choice)]);
    if (static_cast<size_t>(choice) < num_started_) {
      Append(std::exchange(held_[static_cast<size_t>(choice)], {}), out);
    }
    while (num_started_ < held_.size() && !held_[num_started_].empty()) {
      Append(std::exchange(held_[num_started_], {}), out);
      ++num_started_;
    }
  }

 private:
  static void Append(std::vector<std::string> from, std::vector<std::string>* to) {
    to->insert(to->end(), std::make_move_iterator(from.begin()),
               std::make_move_iterator(from.end()));
  }

  std::vector<std::vector<std::string>> held_;
  size_t num_started_ = 0;  // choices 0..num_started_-1 have sent chunks
};

}  // namespace deepinfer
