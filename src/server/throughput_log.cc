#include "server/throughput_log.h"

#include <utility>

#include "base/log.h"

namespace deepinfer {

namespace {

struct Sums {
  int64_t steps = 0, computed = 0, cached = 0, generated = 0, drafts = 0, accepted = 0;
  int64_t running = 0, waiting = 0, kv_tokens = 0, kv_capacity = 0;
};

Sums Sum(const std::vector<EngineStatistics>& engines) {
  Sums sum;
  for (const EngineStatistics& e : engines) {
    sum.steps += e.steps;
    sum.computed += e.prefill_rows;
    sum.cached += e.cached_tokens;
    sum.generated += e.generated_tokens;
    sum.drafts += e.drafts;
    sum.accepted += e.draft_accepted;
    sum.running += e.running;
    sum.waiting += e.waiting;
    sum.kv_tokens += e.kv_tokens;
    sum.kv_capacity += e.kv_capacity_tokens;
  }
  return sum;
}

double Ratio(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

void LogThroughput(const Throughput& t) {
  Log(LogLevel::kInfo, "throughput",
      {{"prompt_tokens_per_s", t.prompt_tokens_per_s},
       {"cached_tokens_per_s", t.cached_tokens_per_s},
       {"generation_tokens_per_s", t.generation_tokens_per_s},
       {"running", t.running},
       {"waiting", t.waiting},
       {"kv_usage", t.kv_usage},
       {"hit_share", t.hit_share},
       {"mean_accepted_drafts", t.mean_accepted_drafts}});
}

}  // namespace

std::optional<Throughput> MakeThroughput(const std::vector<EngineStatistics>& before,
                                         const std::vector<EngineStatistics>& after,
                                         double seconds) {
  const Sums a = Sum(before), b = Sum(after);
  if (b.steps == a.steps && b.running == 0 && b.waiting == 0) return std::nullopt;
  const auto rate = [&](int64_t from, int64_t to) {
    return static_cast<double>(to - from) / seconds;
  };
  Throughput t;
  t.prompt_tokens_per_s = rate(a.computed, b.computed);
  t.cached_tokens_per_s = rate(a.cached, b.cached);
  t.generation_tokens_per_s = rate(a.generated, b.generated);
  t.running = b.running;
  t.waiting = b.waiting;
  t.kv_usage = Ratio(b.kv_tokens, b.kv_capacity);
  t.hit_share = Ratio(b.cached - a.cached, b.cached - a.cached + b.computed - a.computed);
  t.mean_accepted_drafts = Ratio(b.accepted - a.accepted, b.drafts - a.drafts);
  return t;
}

ThroughputLog::ThroughputLog(std::chrono::milliseconds interval, Source source)
    : source_(std::move(source)), thread_([this, interval] { Loop(interval); }) {}

ThroughputLog::~ThroughputLog() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stop_changed_.notify_all();
  thread_.join();
}

void ThroughputLog::Loop(std::chrono::milliseconds interval) {
  using SteadyClock = std::chrono::steady_clock;
  std::vector<EngineStatistics> before = source_();
  SteadyClock::time_point since = SteadyClock::now();
  std::unique_lock lock(mutex_);
  while (!stop_changed_.wait_for(lock, interval, [this] { return stop_; })) {
    std::vector<EngineStatistics> after = source_();
    const SteadyClock::time_point now = SteadyClock::now();
    const double seconds = std::chrono::duration<double>(now - since).count();
    if (const auto line = MakeThroughput(before, after, seconds)) LogThroughput(*line);
    before = std::move(after);
    since = now;
  }
}

}  // namespace deepinfer
