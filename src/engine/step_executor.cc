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
  grammar_us_ = 0;
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
  job->grammar_us = grammar_us_;
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
  const Sequence& s = *item->sequence;
  DeviceRows& device = item->sequence->device;
  // Known before its row, or the row of a sequence that ended in the step before.
  const int32_t index = item->end() - s.prompt_len;
  if (index < device.num_decided || (device.constraint && device.constraint->ended())) {
    return OkStatus();
  }
  SampleRow row;
  row.logits = logits;
  row.position = item->end();
  const auto& forced = s.request.forced_ids;
  if (static_cast<size_t>(index) < forced.size()) {
    row.forced_id = forced[static_cast<size_t>(index)];
  } else if (device.constraint) {
    const int64_t begin_us = clock_->NowUs();
    DI_ASSIGN_OR_RETURN(row.mask, device.constraint->MaskAfter({}));
    grammar_us_ += clock_->NowUs() - begin_us;
  }
  DI_ASSIGN_OR_RETURN(SampledToken token, device.sampler->Sample(row, &scratch_));
  DI_RETURN_IF_ERROR(Take(std::move(token), item));
  const int64_t begin_us = clock_->NowUs();
  const Status status = AppendForced(item);
  grammar_us_ += clock_->NowUs() - begin_us;
  return status;
}

Status StepExecutor::AppendForced(StepItem* item) {
  DeviceRows& device = item->sequence->device;
  for (int32_t i = 0; i < device.max_forced; ++i) {
    if (!device.constraint || device.constraint->ended()) break;
    if (device.num_decided >= device.max_decided) break;
    DI_ASSIGN_OR_RETURN(const std::optional<int32_t> id, device.constraint->ForcedToken());
    // Where the parameters ban the only legal token, sampling reports it.
    if (!id || device.sampler->BansOnlyChoice(*id)) break;
    DI_RETURN_IF_ERROR(Take({.id = *id, .logprobs = {}}, item));
  }
  return OkStatus();
}

Status StepExecutor::Take(SampledToken token, StepItem* item) {
  const Sequence& s = *item->sequence;
  DeviceRows& device = item->sequence->device;
  const auto index = static_cast<size_t>(device.num_decided);
  if (device.constraint) {
    const Status status = device.constraint->Commit(token.id);
    if (!status.ok()) {
      if (index >= s.request.forced_ids.size()) return status;
      // Forced output may leave the grammar; what follows it is free.
      device.constraint.reset();
    } else if (device.constraint->ended()) {
      if (device.constraint->in_grammar() || !s.request.sampling.ignore_eos) {
        item->ended_by_grammar = true;
      } else {
        device.constraint.reset();
      }
    }
  }
  device.sampler->Commit(token.id);
  device.tokens[static_cast<size_t>(s.prompt_len) + index] = token.id;
  ++device.num_decided;
  item->tokens.push_back(std::move(token));
  return OkStatus();
}

}  // namespace deepinfer
