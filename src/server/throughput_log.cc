#include "server/throughput_log.h"

#include <utility>

#include "base/log.h"

namespace deepinfer {

namespace {

struct Sums {
  int64_t steps = 0, computed = 0, cached = 0, generated = 0, drafts = 0, accepted = 0;
  int64_t kiloflops = 0;
  int64_t running = 0, waiting = 0, kv_tokens = 0, kv_capacity = 0;
};

void Add(const EngineStatistics& e, int64_t sign, Sums* sum) {
  sum->steps += sign * e.steps;
  sum->computed += sign * e.prefill_rows;
  sum->cached += sign * e.cached_tokens;
  sum->generated += sign * e.generated_tokens;
  sum->drafts += sign * e.drafts;
  sum->accepted += sign * e.draft_accepted;
  sum->kiloflops += sign * e.kiloflops;
}

// Counters: what was done since `before`, where engines may have come, gone, or begun anew.
// Gauges: as of now.
Sums Difference(const std::vector<EngineStatistics>& before,
                const std::vector<EngineStatistics>& after) {
  Sums sum;
  for (size_t i = 0; i < after.size(); ++i) {
    const EngineStatistics& e = after[i];
    Add(e, 1, &sum);
    sum.running += e.running;
    sum.waiting += e.waiting;
    sum.kv_tokens += e.kv_tokens;
    sum.kv_capacity += e.kv_capacity_tokens;
    for (size_t j = 0; j < before.size(); ++j) {
      const bool is_same = e.name.empty() ? j == i : before[j].name == e.name;
      if (is_same && before[j].incarnation == e.incarnation) Add(before[j], -1, &sum);
    }
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
       {"mean_accepted_drafts", t.mean_accepted_drafts},
       {"gflops_per_s", t.gflops_per_s}});
}

}  // namespace

std::optional<Throughput> MakeThroughput(const std::vector<EngineStatistics>& before,
                                         const std::vector<EngineStatistics>& after,
                                         double seconds) {
  const Sums sum = Difference(before, after);
  if (sum.steps == 0 && sum.running == 0 && sum.waiting == 0) return std::nullopt;
  const auto rate = [&](int64_t tokens) { return static_cast<double>(tokens) / seconds; };
  Throughput t;
  t.prompt_tokens_per_s = rate(sum.computed);
  t.cached_tokens_per_s = rate(sum.cached);
  t.generation_tokens_per_s = rate(sum.generated);
  t.running = sum.running;
  t.waiting = sum.waiting;
  t.kv_usage = Ratio(sum.kv_tokens, sum.kv_capacity);
  t.hit_share = Ratio(sum.cached, sum.cached + sum.computed);
  t.mean_accepted_drafts = Ratio(sum.accepted, sum.drafts);
  t.gflops_per_s = rate(sum.kiloflops) * 1e-6;
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
