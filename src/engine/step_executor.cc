#include "engine/step_executor.h"

#include <algorithm>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/thread_name.h"
#include "engine/token_decision.h"

namespace deepinfer {

namespace {

// Rows with fewer logits together are read faster than threads are woken.
constexpr size_t kLeastSpreadLogits = 200'000;

// Threads for token masks: a mask takes a small part of a forward pass, so few of them keep up
// with a batch; with one core for the operators there is none to spare.
int NumMaskThreads(const ThreadPool* operators) {
  return operators == nullptr ? 1 : std::min(operators->num_threads() - 1, 4);
}

}  // namespace

StepExecutor::StepExecutor(Model* model, const EngineOptions& options, const Clock* clock)
    : model_(model),
      clock_(clock),
      decisions_{{model->config().eos_token_id, options.max_model_len}, clock, {}, 0},
      pool_(options.sampling_pool),
      masks_(NumMaskThreads(options.sampling_pool)) {
  if (Drafter::MaxDrafts(model->config(), options.speculation) > 0) {
    drafter_.emplace(*model, options.speculation);
  }
  if (!options.async_scheduling) return;
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

std::unique_ptr<StepJob> StepExecutor::Wait() {
  if (!asynchronous()) {
    std::unique_ptr<StepJob> job = std::move(launched_.front());
    launched_.pop_front();
    Run(job.get());
    return job;
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !finished_.empty(); });
  std::unique_ptr<StepJob> job = std::move(finished_.front());
  finished_.pop_front();
  return job;
}

void StepExecutor::Loop() {
  NameThread("step");
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
  decisions_.grammar_us = 0;
  for (const MemoryCopy& copy : job->copies) {
    std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.size_bytes));
  }
  // The draft rings are copied too, and what is missing in them.
  for (const Fork& fork : job->forks) {
    fork.branch->device.context.kept_from = fork.leader->device.context.kept_from;
  }
  job->copied_us = clock_->NowUs();
  for (StepItem& item : job->items) Place(&item);
  MakeDrafts(job);
  BeginMasks(job);
  RunRows(job);
  const int64_t rows_us = clock_->NowUs();
  masks_.Finish();
  decisions_.grammar_us += clock_->NowUs() - rows_us;
  std::span<float> logits(output_.logits);
  std::span<const float> maxima(output_.logit_maxima);
  const auto vocab = static_cast<size_t>(model_->config().vocab_size);
  const auto num_maxima = static_cast<size_t>(NumMaxima(model_->config().vocab_size));
  size_t ran = 0;
  for (StepItem& item : job->items) {
    if (!item.ran) continue;
    item.status = job->status.ok() ? output_.status[ran++] : job->status;
    if (!job->status.ok()) continue;
    const auto num_logits = static_cast<size_t>(item.end() - item.rows.logits_from);
    item.logits = logits.first(num_logits * vocab);
    logits = logits.subspan(num_logits * vocab);
    item.logit_maxima = maxima.first(num_logits * num_maxima);
    maxima = maxima.subspan(num_logits * num_maxima);
  }
  if (job->status.ok()) RunItems(job);
  KeepContext(job);
  job->grammar_us = decisions_.grammar_us;
  job->end_us = clock_->NowUs();
}

void StepExecutor::Place(StepItem* item) const {
  if (!item->is_decode) return;
  const Sequence& s = *item->sequence;
  SequenceStep& r = item->rows;
  item->ran = !s.device.ended;
  r.start = s.device.next;
  const int32_t num_known = s.prompt_len + s.device.num_decided - r.start;
  // Window state is kept at block edges, so known tokens do not run past one.
  const int32_t block_end = (r.start / kBlockTokens + 1) * kBlockTokens;
  const int32_t most = std::min(1 + item->max_drafts, block_end - r.start);
  item->num_known = item->ran ? std::min(num_known, most) : 0;
  item->decides_token = item->ran && item->num_known == num_known;
  r.num_rows = item->num_known;
  r.logits_from = item->end() - item->decides_token;
  // Drafts behind the last token of the answer would be rows for nothing.
  const int64_t left = std::min<int64_t>(s.request.sampling.max_tokens - s.device.num_decided,
                                         decisions_.rule.max_model_len - r.start - 1);
  item->max_drafts = num_known > 1 || !item->may_draft
                         ? 0
                         : static_cast<int32_t>(std::clamp<int64_t>(left - 1, 0, item->max_drafts));
}

void StepExecutor::MakeDrafts(StepJob* job) {
  if (!drafter_.has_value()) return;
  const int64_t begin_us = clock_->NowUs();
  if (job->verify.most_drafts > 0) BeginMasks(job);
  drafter_->Draft(job->items, job->verify, &masks_, &decisions_);
  // Without drafts nobody waited for them.
  masks_.Finish();
  job->draft_us = clock_->NowUs() - begin_us;
}

void StepExecutor::BeginMasks(StepJob* job) {
  masked_.clear();
  for (StepItem& item : job->items) {
    if (item.ran && item.decides_token && item.sequence->device.constraint)
      masked_.push_back(&item);
  }
  masks_.Begin(masked_.size(), [this](size_t i) {
    const StepItem& item = *masked_[i];
    const auto num_verified = static_cast<size_t>(item.num_verified);
    item.sequence->device.constraint->Prepare(std::span(item.drafts.ids).first(num_verified));
  });
}

void StepExecutor::RunRows(StepJob* job) {
  const int64_t begin_us = clock_->NowUs();
  std::vector<SequenceStep> rows;
  rows.reserve(job->items.size());
  for (const StepItem& item : job->items) {
    if (item.ran) rows.push_back(item.rows);
  }
  if (!rows.empty())
    job->status = model_->Step(rows, drafter_.has_value() && job->keeps_context, &output_);
  job->expert_rows.swap(output_.expert_rows);
  job->model_us = clock_->NowUs() - begin_us;
}

void StepExecutor::RunItems(StepJob* job) {
  std::vector<StepItem*> items;
  size_t num_logits = 0;
  for (StepItem& item : job->items) {
    if (!item.ran) continue;
    items.push_back(&item);
    num_logits += item.logits.size();
  }
  if (pool_ == nullptr || items.size() < 2 || num_logits < kLeastSpreadLogits) {
    for (StepItem* item : items) RunItem(item, &decisions_);
    return;
  }
  const size_t num_groups = std::min(items.size(), static_cast<size_t>(pool_->num_threads()));
  while (spread_decisions_.size() < num_groups) {
    spread_decisions_.push_back({decisions_.rule, clock_, {}, 0});
  }
  pool_->ParallelFor(static_cast<int64_t>(num_groups), [&](int64_t group) {
    const auto g = static_cast<size_t>(group);
    for (size_t i = g; i < items.size(); i += num_groups) {
      RunItem(items[i], &spread_decisions_[g]);
    }
  });
  for (DecisionContext& d : spread_decisions_) {
    decisions_.grammar_us += std::exchange(d.grammar_us, 0);
  }
}

void StepExecutor::RunItem(StepItem* item, DecisionContext* decisions) {
  const std::span<float> logits = item->logits;
  const Sequence& s = *item->sequence;
  // Without deciding rows there may be none.
  const auto num_rows_out = static_cast<size_t>(item->end() - item->rows.logits_from);
  const size_t vocab = num_rows_out == 0 ? 0 : logits.size() / num_rows_out;
  if (item->status.ok() && item->wants_prompt_logprobs) {
    for (int32_t p = item->rows.start; p < item->end() && p + 1 < s.prompt_len; ++p) {
      item->prompt_logprobs.push_back(RawLogprobs(
          logits.subspan(static_cast<size_t>(p - item->rows.start) * vocab, vocab),
          s.device.tokens[static_cast<size_t>(p) + 1], s.request.sampling.num_top_logprobs));
    }
  }
  if (item->status.ok() && item->decides_token) {
    const size_t num_rows = static_cast<size_t>(item->num_verified) + 1;
    const size_t num_maxima = item->logit_maxima.size() / num_rows_out;
    item->status = DecideTokens(item, logits.last(num_rows * vocab),
                                item->logit_maxima.last(num_rows * num_maxima), decisions);
  }
  if (!item->status.ok()) {
    // Without drafts the request might not have met what failed, so the next step tries the row of
    // the anchor alone.
    if (item->num_verified == 0) return;
    item->sequence->device.drafts_fail = true;
    item->status = OkStatus();
    return;
  }
  NoteProgress(item);
}

void StepExecutor::NoteProgress(StepItem* item) {
  DeviceRows& device = item->sequence->device;
  if (item->is_decode) {
    // The row of the last decided token is still to run.
    const auto num_chosen = static_cast<int32_t>(item->tokens.size()) - item->num_forced;
    item->num_committed = item->num_known + std::max(0, num_chosen - 1);
    device.next = item->rows.start + item->num_committed;
  } else if (item->decides_token) {
    device.next = item->end();
  }
  const int32_t committed = item->is_decode ? device.next : item->end();
  const int32_t edge = committed / kBlockTokens * kBlockTokens;
  if (item->snapshot_bytes == 0 || edge <= item->rows.start) return;
  // Rows of drafts behind the edge have taken no place of the window before it yet.
  item->snapshot = std::make_shared<EdgeSnapshot>();
  item->snapshot->edge = edge;
  item->snapshot->rings.assign(item->rows.slot, item->rows.slot + item->snapshot_bytes);
}

void StepExecutor::KeepContext(StepJob* job) {
  if (!drafter_.has_value() || !job->status.ok()) return;
  const int64_t begin_us = clock_->NowUs();
  // Without memory for it the drafts of the next steps are worse, no more.
  if (job->keeps_context) {
    (void)drafter_->Keep(job->items, output_.main_hidden);
  } else {
    Drafter::Forget(job->items);
  }
  job->context_us = clock_->NowUs() - begin_us;
}

}  // namespace deepinfer
