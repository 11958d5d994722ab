#include "engine/flight_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace deepinfer {

void FlightRecord::Launch(const StepJob& job) {
  Launched launched;
  launched.number = job.number;
  launched.launched_us = job.launched_us;
  launched.items.reserve(job.items.size());
  for (const StepItem& item : job.items) {
    launched.items.push_back(
        {&item.sequence->request.request_id, item.is_decode, item.rows.start, item.launched_rows});
  }
  const std::lock_guard lock(mutex_);
  launched_.push_back(std::move(launched));
}

void FlightRecord::Add(const StepJob& job) {
  const std::lock_guard lock(mutex_);
  if (!launched_.empty()) launched_.pop_front();
  Step& step = steps_[num_steps_++ % kSteps];
  step.number = job.number;
  step.launched_us = job.begin_us;
  step.num_items = static_cast<int32_t>(job.items.size());
  step.prefill_rows = static_cast<int32_t>(job.rows.prefill_rows);
  step.decode_rows = static_cast<int32_t>(job.rows.decode_rows);
  step.predicted_us = static_cast<int64_t>(job.predicted_us);
  step.measured_us = job.end_us - job.begin_us;
}

std::string FlightRecord::DescribeLaunched() const {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (const Launched& step : launched_) {
    fmt::format_to(std::back_inserter(text), "{}step {} launched at {} us",
                   text.empty() ? "" : "; ", step.number, step.launched_us);
    for (const Item& item : step.items) {
      fmt::format_to(std::back_inserter(text), ", {} of {} from {}: {} rows",
                     item.is_decode ? "answer" : "prompt", *item.request_id, item.start,
                     item.num_rows);
    }
  }
  return text;
}

std::vector<std::string> FlightRecord::DescribeLast(size_t steps_per_text) const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> texts;
  const size_t known = std::min(num_steps_, kSteps);
  for (size_t i = 0; i < known; ++i) {
    const Step& s = steps_[(num_steps_ - known + i) % kSteps];
    if (i % steps_per_text == 0) texts.emplace_back();
    std::string& text = texts.back();
    fmt::format_to(std::back_inserter(text),
                   "{}step {} at {} us: {} requests, {} prompt and {} answer rows, predicted {} "
                   "us, took {} us",
                   text.empty() ? "" : "; ", s.number, s.launched_us, s.num_items, s.prefill_rows,
                   s.decode_rows, s.predicted_us, s.measured_us);
  }
  return texts;
}

}  // namespace deepinfer
