// What an engine ran last and what it runs now, for the log when it does not get on.
// Thread rule: any thread. Owner: Engine; the engine thread writes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "engine/step_job.h"

namespace deepinfer {

class FlightRecord {
 public:
  static constexpr size_t kSteps = 1000;

  // Of a job that is about to be launched. Its sequences stay until Add.
  void Launch(const StepJob& job);
  // Of the earliest launched job, once it is over.
  void Add(const StepJob& job);

  // The launched steps: of each its number, when it was launched and the rows of every request.
  std::string DescribeLaunched() const;
  // The last kSteps steps, oldest first, in texts of at most so many.
  std::vector<std::string> DescribeLast(size_t steps_per_text) const;

 private:
  struct Item {
    const std::string* request_id = nullptr;
    bool is_decode = false;
    int32_t start = 0;  // of a decode item at most
    int32_t num_rows = 0;
  };
  struct Launched {
    int64_t number = 0;
    int64_t launched_us = 0;
    std::vector<Item> items;
  };
  struct Step {
    int64_t number = 0;
    int64_t launched_us = 0;
    int32_t num_items = 0;
    int32_t prefill_rows = 0;
    int32_t decode_rows = 0;
    int64_t predicted_us = 0;
    int64_t measured_us = 0;
  };

  mutable std::mutex mutex_;
  std::deque<Launched> launched_;
  std::array<Step, kSteps> steps_{};
  size_t num_steps_ = 0;
};

}  // namespace deepinfer
