#include "engine/step_executor.h"

#include <cstring>
#include <system_error>

#include "base/result.h"

namespace deepinfer {

StepExecutor::StepExecutor(Model* model, const Clock* clock, bool asynchronous)
    : model_(model), clock_(clock) {
  if (!asynchronous) return;
  try {
    thread_ = std::thread([this] { Loop(); });
  } catch (const std::system_error&) {
    // The process may start no more threads; tokens do not depend on it.
  }
}

StepExecutor::~StepExecutor() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void StepExecutor::Launch(std::unique_ptr<StepJob> job) {
  {
    const std::lock_guard lock(mutex_);
    launched_.push_back(std::move(job));
  }
  changed_.notify_all();
}

std::unique_ptr<StepJob> StepExecutor::Wait(std::chrono::milliseconds limit) {
  if (!asynchronous()) {
    std::unique_ptr<StepJob> job = std::move(launched_.front());
    launched_.pop_front();
    Run(job.get());
    return job;
  }
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, limit, [this] { return !finished_.empty(); })) return nullptr;
  std::unique_ptr<StepJob> job = std::move(finished_.front());
  finished_.pop_front();
  return job;
}

void StepExecutor::Loop() {
  while (true) {
    std::unique_ptr<StepJob> job;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stop_ || !launched_.empty(); });
      if (launched_.empty()) return;
      job = std::move(launched_.front());
      launched_.pop_front();
    }
    Run(job.get());
    {
      const std::lock_guard lock(mutex_);
      finished_.push_back(std::move(job));
    }
    changed_.notify_all();
  }
}

void StepExecutor::Run(StepJob* job) {
  job->begin_us = clock_->NowUs();
  for (const MemoryCopy& copy : job->copies) {
    std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.size_bytes));
  }
  job->copied_us = clock_->NowUs();
  std::vector<SequenceStep> rows;
  rows.reserve(job->items.size());
  for (const StepItem& item : job->items) rows.push_back(item.rows);
  if (!rows.empty()) job->status = model_->Step(rows, false, &output_);
  job->model_us = clock_->NowUs() - job->begin_us;
  std::span<float> logits(output_.logits);
  const auto vocab = static_cast<size_t>(model_->config().vocab_size);
  for (size_t i = 0; i < job->items.size(); ++i) {
    StepItem& item = job->items[i];
    item.status = job->status.ok() ? output_.status[i] : job->status;
    if (!job->status.ok()) continue;
    const auto num_logits = static_cast<size_t>(item.end() - item.rows.logits_from);
    if (item.status.ok()) RunItem(&item, logits.first(num_logits * vocab));
    logits = logits.subspan(num_logits * vocab);
  }
  for (const StepItem& item : job->items) {
    if (item.snapshot == nullptr || !item.status.ok()) continue;
    std::memcpy(item.snapshot->rings.data(), item.rows.slot, item.snapshot->rings.size());
  }
  job->end_us = clock_->NowUs();
}

void StepExecutor::RunItem(StepItem* item, std::span<float> logits) {
  const Sequence& s = *item->sequence;
  const auto vocab = static_cast<size_t>(model_->config().vocab_size);
  if (item->wants_prompt_logprobs) {
    for (int32_t p = item->rows.start; p < item->end() && p + 1 < s.prompt_len; ++p) {
      item->prompt_logprobs.push_back(RawLogprobs(
          logits.subspan(static_cast<size_t>(p - item->rows.start) * vocab, vocab),
          s.device.tokens[static_cast<size_t>(p) + 1], s.request.sampling.num_top_logprobs));
    }
  }
  if (item->decides_token) item->status = DecideToken(item, logits.last(vocab));
}

Status StepExecutor::DecideToken(StepItem* item, std::span<float> logits) {
  DeviceRows& device = item->sequence->device;
  const auto& forced = item->sequence->request.forced_ids;
  SampleRow row;
  row.logits = logits;
  row.position = item->end();
  const auto index = static_cast<size_t>(device.num_decided);
  if (index < forced.size()) row.forced_id = forced[index];
  DI_ASSIGN_OR_RETURN(item->token, device.sampler->Sample(row, &scratch_));
  device.sampler->Commit(item->token.id);
  device.tokens[static_cast<size_t>(item->end())] = item->token.id;
  ++device.num_decided;
  return OkStatus();
}

}  // namespace deepinfer
