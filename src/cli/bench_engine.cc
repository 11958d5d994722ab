// deepinfer bench engine: what scheduling costs and what clients of a loaded engine see.

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <future>
#include <thread>

#include "base/philox.h"
#include "base/thread_priority.h"
#include "cli/bench_engine_load.h"
#include "cli/bench_flags.h"
#include "cli/commands.h"
#include "cli/generation.h"
#include "cli/value_checks.h"

namespace deepinfer {
namespace {

using Clock = std::chrono::steady_clock;

// A profile that takes longer ends with the steps it has.
constexpr int64_t kProfileTimeoutUs = 20'000'000;
constexpr int64_t kDrainTimeoutUs = 60'000'000;
// Of every request, before the times of predictions count.
constexpr int32_t kWarmTokens = 8;
constexpr int32_t kShortPrompt = 16;
// Requests alive at a time while many are cancelled.
constexpr int64_t kLive = 64;
constexpr int32_t kMostWaiting = 256;
constexpr char kNoFullStep[] = "no step held all requests: raise --gen";
// One arrival among decoding requests in so many of their tokens.
constexpr int32_t kTokensPerArrival = 8;

// What is not the model: planning, sampling, taking over and delivering results.
double HostUs(const StepTrace& s) {
  return static_cast<double>((s.launched_us - s.plan_us) + (s.end_us - s.computed_us) +
                             (s.processed_us - s.process_us));
}

double StepUs(const StepTrace& s) { return static_cast<double>(s.end_us - s.begin_us); }

template <typename Part>
double MedianOf(const std::vector<StepTrace>& traces, Part part) {
  std::vector<double> values;
  for (const StepTrace& s : traces) values.push_back(static_cast<double>(part(s)));
  return Percentile(std::move(values), 0.5);
}

// Mean relative error of the predictions of the steps between two moments, in percent.
double PredictionError(const EngineStatistics& before, const EngineStatistics& after) {
  const StatHistogram &a = before.step_prediction_error, &b = after.step_prediction_error;
  int64_t steps = 0;
  for (size_t i = 0; i < b.counts().size(); ++i) steps += b.counts()[i] - a.counts()[i];
  return steps == 0 ? 0 : 100 * (b.sum() - a.sum()) / static_cast<double>(steps);
}

struct BatchRows {
  BenchRow decode, host;
  std::vector<StepTrace> traces;
  std::vector<double> prediction_errors;
};

class BenchEngineCommand final : public Command {
 public:
  CLI::App* Register(CLI::App* app) override {
    CLI::App* c = app->get_subcommand("bench")->add_subcommand(
        "engine", "Host time of a step, batch scaling, gaps between tokens beside a long prompt");
    flags_.Register(c);
    c->add_option("--batches", batches_, "Requests that decode together")
        ->delimiter(',')
        ->check(Positive())
        ->capture_default_str();
    c->add_option("--gen", gen_len_, "Tokens of each answer")
        ->check(CLI::Range(4 * kWarmTokens, 1 << 20))
        ->capture_default_str();
    c->add_option("--long-prompt", long_prompt_,
                  "Tokens of the prompt beside decoding requests; 0 = none")
        ->check(NotNegative())
        ->capture_default_str();
    c->add_option("--step-rows", step_rows_, "Rows of a step at most")
        ->check(Positive())
        ->capture_default_str();
    c->add_flag("--drafts", drafts_, "Let the model draft as a server does");
    c->add_option("--queued", num_queued_, "Requests that wait while the largest batch decodes")
        ->check(NotNegative())
        ->capture_default_str();
    c->add_option("--cancels", num_cancels_, "Requests cancelled at random moments")
        ->check(NotNegative())
        ->capture_default_str();
    c->footer("Example:\n  deepinfer bench engine --batches 1,8 --long-prompt 3000 --rounds 5");
    return c;
  }

  int Run(const FlagOrigins&) override {
    const Status status = Bench();
    return status.ok() ? kExitOk : ReportFailure(status);
  }

 private:
  Status Bench() {
    DI_ASSIGN_OR_RETURN(const std::filesystem::path dir, flags_.model.ModelDir());
    DI_ASSIGN_OR_RETURN(BundleOptions options, flags_.model.Bundle());
    BenchReport report{"engine", dir.string(), ReadEnvironment(IsaLevelName(options.isa)), {}};
    for (int threads : flags_.ThreadCounts()) {
      options.num_threads = threads;
      options.model.max_positions = std::max(long_prompt_, kShortPrompt) + gen_len_ + 1;
      EngineOptions engine;
      engine.max_model_len = options.model.max_positions;
      engine.max_num_seqs = largest_batch() + 1;
      engine.max_queued_requests = std::max(engine.max_queued_requests, num_queued_ + 1);
      engine.max_num_batched_tokens = step_rows_;
      engine.prefix_cache = false;
      // What drafts are worth random prompts do not tell, only what deciding about them costs.
      engine.speculation.enabled = drafts_;
      DI_ASSIGN_OR_RETURN(local_, LocalEngine::Open(dir, options, engine));
      if (local_->engine().max_model_len() < options.model.max_positions) {
        return InvalidRequest("--long-prompt plus --gen exceed the model's positions");
      }
      DI_RETURN_IF_ERROR(MeasureBeside(fmt::format(" threads {}", threads), &report));
      local_.reset();
    }
    return flags_.Publish(std::move(report));
  }

  int32_t largest_batch() const { return *std::max_element(batches_.begin(), batches_.end()); }

  // Where the process has real-time priority, requests must not wait for the threads that compute.
  Status MeasureBeside(const std::string& suffix, BenchReport* report) {
    Status status;
    std::thread([&] {
      RunBeforeEqualThreads();
      status = Measure(suffix, report);
    }).join();
    return status;
  }

  Status Measure(const std::string& suffix, BenchReport* report) {
    std::vector<BatchRows> rows;
    for (int32_t batch : batches_) {
      rows.push_back({{fmt::format("decode batch {}{}", batch, suffix), "tok/s", {}, {}},
                      {fmt::format("host time batch {}{}", batch, suffix), "us/step", {}, {}},
                      {},
                      {}});
    }
    // Batches in turn within a round, so that a disturbance meets all of them. Round 0 warms up.
    for (int round = 0; round <= flags_.rounds; ++round) {
      for (size_t i = 0; i < batches_.size(); ++i) {
        DI_RETURN_IF_ERROR(DecodeTogether(batches_[i], round > 0 ? &rows[i] : nullptr));
      }
    }
    const double single = Summarize(rows.front().decode.samples).median;
    decode_step_us_ = 0;
    for (BatchRows& r : rows) {
      if (r.traces.empty()) return Unavailable(kNoFullStep);
      r.decode.facts = {{"times batch " + std::to_string(batches_.front()),
                         Summarize(r.decode.samples).median / single},
                        {"prediction error %", Percentile(r.prediction_errors, 0.5)}};
      r.host.facts = HostFacts(r.traces);
      decode_step_us_ = std::max(decode_step_us_, MedianOf(r.traces, StepUs));
      report->rows.push_back(std::move(r.decode));
      report->rows.push_back(std::move(r.host));
    }
    DI_RETURN_IF_ERROR(ArriveAmongDecoding(suffix, report));
    if (long_prompt_ > 0) DI_RETURN_IF_ERROR(BesideALongPrompt(suffix, report));
    if (num_queued_ > 0) DI_RETURN_IF_ERROR(BeforeAQueue(suffix, report));
    return num_cancels_ > 0 ? CancelMany(suffix, report) : OkStatus();
  }

  EngineRequest Request(int32_t prompt_len, int32_t max_tokens) {
    return RandomRequest(++num_requests_, local_->bundle().model->config().vocab_size, prompt_len,
                         max_tokens);
  }

  Status SubmitMany(int32_t num, LoadReceiver* receiver) {
    for (int32_t i = 0; i < num; ++i) {
      DI_RETURN_IF_ERROR(
          local_->engine().Submit(Request(kShortPrompt, gen_len_), receiver->Sink()));
    }
    return OkStatus();
  }

  // `batch` short prompts decode together; speed from when all of them do. rows: null to warm up.
  Status DecodeTogether(int32_t batch, BatchRows* rows) {
    LoadReceiver receiver;
    DI_RETURN_IF_ERROR(SubmitMany(batch, &receiver));
    DI_RETURN_IF_ERROR(receiver.WaitForTokens(kWarmTokens));
    DI_ASSIGN_OR_RETURN(StepTraces traces, RecordSteps());
    const EngineStatistics before = local_->engine().Statistics();
    DI_RETURN_IF_ERROR(receiver.WaitAll());
    const EngineStatistics after = local_->engine().Statistics();
    const std::vector<StepTrace> taken = DecodeSteps(&traces, batch);
    if (rows == nullptr) return OkStatus();
    rows->decode.samples.push_back(Speed(receiver));
    if (!taken.empty()) rows->host.samples.push_back(MeanHostUs(taken));
    rows->traces.insert(rows->traces.end(), taken.begin(), taken.end());
    rows->prediction_errors.push_back(PredictionError(before, after));
    return OkStatus();
  }

  using StepTraces = std::future<std::vector<StepTrace>>;

  // The next steps, fewer than are left of an answer.
  Result<StepTraces> RecordSteps() {
    auto promise = std::make_shared<std::promise<std::vector<StepTrace>>>();
    StepTraces traces = promise->get_future();
    DI_RETURN_IF_ERROR(local_->engine().Profile(
        std::min(kMaxProfileSteps, gen_len_ / 2), SteadyClock().NowUs() + kProfileTimeoutUs,
        [promise](std::vector<StepTrace> recorded) { promise->set_value(std::move(recorded)); }));
    return traces;
  }

  // Those of them in which `batch` sequences decode and nothing else happens.
  static std::vector<StepTrace> DecodeSteps(StepTraces* traces, int32_t batch) {
    std::vector<StepTrace> taken = traces->get();
    std::erase_if(
        taken, [&](const StepTrace& s) { return s.num_sequences != batch || s.prefill_rows > 0; });
    return taken;
  }

  static double MeanHostUs(const std::vector<StepTrace>& traces) {
    double sum = 0;
    for (const StepTrace& s : traces) sum += HostUs(s);
    return sum / static_cast<double>(traces.size());
  }

  // Host time while every place is taken and many wait for one.
  Status BeforeAQueue(const std::string& suffix, BenchReport* report) {
    const int32_t batch = largest_batch() + 1;
    BenchRow host{fmt::format("host time batch {} before {} waiting{}", batch, num_queued_, suffix),
                  "us/step",
                  {},
                  {}};
    std::vector<StepTrace> traces;
    for (int round = 0; round < flags_.rounds; ++round) {
      LoadReceiver running, waiting;
      DI_RETURN_IF_ERROR(SubmitMany(batch, &running));
      DI_RETURN_IF_ERROR(running.WaitForTokens(1));
      std::vector<std::string> ids;
      for (int32_t i = 0; i < num_queued_; ++i) {
        EngineRequest request = Request(kShortPrompt, 1);
        ids.push_back(request.request_id);
        DI_RETURN_IF_ERROR(local_->engine().Submit(std::move(request), waiting.Sink()));
      }
      DI_ASSIGN_OR_RETURN(StepTraces recorded, RecordSteps());
      const std::vector<StepTrace> taken = DecodeSteps(&recorded, batch);
      for (const std::string& id : ids) local_->engine().Cancel(id);
      DI_RETURN_IF_ERROR(running.WaitAll());
      DI_RETURN_IF_ERROR(waiting.WaitAll());
      if (taken.empty()) return Unavailable(kNoFullStep);
      host.samples.push_back(MeanHostUs(taken));
      traces.insert(traces.end(), taken.begin(), taken.end());
    }
    host.facts = HostFacts(traces);
    report->rows.push_back(std::move(host));
    return OkStatus();
  }

  // Tokens a second between the last first token and the first last one.
  static double Speed(const LoadReceiver& receiver) {
    Clock::time_point begin = Clock::time_point::min(), end = Clock::time_point::max();
    for (const auto& times : receiver.arrivals()) {
      begin = std::max(begin, times.front());
      end = std::min(end, times.back());
    }
    double tokens = 0;
    for (const auto& times : receiver.arrivals()) {
      tokens += static_cast<double>(std::count_if(
          times.begin(), times.end(), [&](Clock::time_point t) { return t > begin && t <= end; }));
    }
    return tokens / (Micros(end - begin) * 1e-6);
  }

  static std::vector<BenchFact> HostFacts(const std::vector<StepTrace>& traces) {
    const double step = MedianOf(traces, StepUs);
    return {{"plan us", MedianOf(traces, [](const auto& s) { return s.launched_us - s.plan_us; })},
            {"sample us", MedianOf(traces, [](const auto& s) { return s.end_us - s.computed_us; })},
            {"process us",
             MedianOf(traces, [](const auto& s) { return s.processed_us - s.process_us; })},
            {"to delivery us",
             MedianOf(traces, [](const auto& s) { return s.processed_us - s.end_us; })},
            {"step us", step},
            {"% of step", 100 * MedianOf(traces, HostUs) / step}};
  }

  // From the arrival of a request, at any moment of a step, to the plan with its first chunk.
  Status ArriveAmongDecoding(const std::string& suffix, BenchReport* report) {
    const int32_t batch = largest_batch();
    BenchRow row{fmt::format("arrival to first chunk batch {}{}", batch, suffix), "us", {}, {}};
    for (int round = 0; round < flags_.rounds; ++round) {
      LoadReceiver decoding;
      DI_RETURN_IF_ERROR(SubmitMany(batch, &decoding));
      DI_RETURN_IF_ERROR(decoding.WaitForTokens(kWarmTokens));
      for (int32_t i = 0; i < (gen_len_ - kWarmTokens) / kTokensPerArrival; ++i) {
        const double share = UniformFromBits(
            RandomBits(RandomBlock(/*seed=*/3, row.samples.size(), RandomPurpose::kSample, 0)));
        std::this_thread::sleep_for(
            std::chrono::microseconds(static_cast<int64_t>(2 * share * decode_step_us_)));
        LoadReceiver arriving;
        DI_RETURN_IF_ERROR(
            local_->engine().Submit(Request(kShortPrompt, /*max_tokens=*/1), arriving.Sink()));
        DI_RETURN_IF_ERROR(arriving.WaitAll());
        row.samples.push_back(
            static_cast<double>(arriving.last_events().front().counters.queue_us));
      }
      DI_RETURN_IF_ERROR(decoding.WaitAll());
    }
    row.facts = {{"decode steps", Summarize(row.samples).median / decode_step_us_},
                 {"p90 decode steps", Percentile(row.samples, 0.9) / decode_step_us_}};
    report->rows.push_back(std::move(row));
    return OkStatus();
  }

  // Gaps between the tokens of decoding requests while a long prompt is computed.
  Status BesideALongPrompt(const std::string& suffix, BenchReport* report) {
    const int32_t batch = largest_batch();
    const std::string beside_it = fmt::format(" beside a prompt of {}", long_prompt_);
    BenchRow alone{fmt::format("gap p99 batch {}{}", batch, suffix), "ms", {}, {}};
    BenchRow beside{alone.name + beside_it, "ms", {}, {}};
    std::vector<double> errors, medians;
    for (int round = 0; round <= flags_.rounds; ++round) {
      LoadReceiver decoding, prompt;
      DI_RETURN_IF_ERROR(SubmitMany(batch, &decoding));
      DI_RETURN_IF_ERROR(decoding.WaitForTokens(static_cast<size_t>(gen_len_) / 3));
      const EngineStatistics before = local_->engine().Statistics();
      const Clock::time_point arrival = Clock::now();
      DI_RETURN_IF_ERROR(local_->engine().Submit(Request(long_prompt_, 1), prompt.Sink()));
      DI_RETURN_IF_ERROR(prompt.WaitAll());
      const Clock::time_point computed = Clock::now();
      const EngineStatistics after = local_->engine().Statistics();
      DI_RETURN_IF_ERROR(decoding.WaitAll());
      if (round == 0) continue;
      std::vector<double> before_it, during_it;
      for (const auto& times : decoding.arrivals()) {
        for (size_t i = 1; i < times.size(); ++i) {
          std::vector<double>* gaps = times[i] <= arrival ? &before_it : &during_it;
          if (times[i] <= computed) gaps->push_back(Micros(times[i] - times[i - 1]) * 1e-3);
        }
      }
      alone.samples.push_back(Percentile(before_it, 0.99));
      beside.samples.push_back(Percentile(during_it, 0.99));
      medians.push_back(Percentile(during_it, 0.5));
      errors.push_back(PredictionError(before, after));
    }
    beside.facts = {{"of the step target",
                     Summarize(beside.samples).median * 1e3 / static_cast<double>(kTpotTargetUs)},
                    {"median gap ms", Percentile(medians, 0.5)},
                    {"prediction error %", Percentile(errors, 0.5)}};
    for (BenchRow* row : {&alone, &beside}) report->rows.push_back(std::move(*row));
    return OkStatus();
  }

  // Requests cancelled at random moments; what is held afterwards is leaked.
  Status CancelMany(const std::string& suffix, BenchReport* report) {
    Engine& engine = local_->engine();
    const EngineStatistics before = engine.Statistics();
    const Clock::time_point begin = Clock::now();
    std::vector<std::string> live;
    for (int64_t i = 0; i < num_cancels_; ++i) {
      const PhiloxBlock bits =
          RandomBlock(/*seed=*/2, static_cast<uint64_t>(i), RandomPurpose::kSample, 0);
      EngineRequest request = Request(1 + static_cast<int32_t>(bits[0] % 40), gen_len_);
      live.push_back(request.request_id);
      // Cancelled ones leave the queue between steps only.
      while (engine.Statistics().waiting >= kMostWaiting) {
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
      DI_RETURN_IF_ERROR(engine.Submit(std::move(request), [](const TokenEvent&) {}));
      if (static_cast<int64_t>(live.size()) < kLive) continue;
      std::swap(live[bits[1] % kLive], live.back());
      engine.Cancel(live.back());
      live.pop_back();
    }
    for (const std::string& id : live) engine.Cancel(id);
    engine.Drain(SteadyClock().NowUs() + kDrainTimeoutUs);
    const double seconds = Micros(Clock::now() - begin) * 1e-6;
    // The step in flight may still hold what ended.
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    const EngineStatistics after = engine.Statistics();
    report->rows.push_back(
        {"cancels" + suffix,
         "1/s",
         {static_cast<double>(num_cancels_) / seconds},
         {{"requests", static_cast<double>(num_cancels_)},
          {"cancelled", static_cast<double>(after.cancels - before.cancels)},
          {"of these begun", static_cast<double>(after.started - before.started)},
          {"blocks leaked", static_cast<double>(after.blocks_acquired - after.blocks_released)},
          {"slots leaked", static_cast<double>(after.slots_acquired - after.slots_released)}}});
    return OkStatus();
  }

  BenchFlags flags_;
  std::vector<int32_t> batches_ = {1, 2, 4, 8};
  int32_t gen_len_ = 80;
  int32_t long_prompt_ = 2048;
  int32_t step_rows_ = EngineOptions().max_num_batched_tokens;
  int32_t num_queued_ = 0;
  bool drafts_ = false;
  double decode_step_us_ = 0;  // of the largest batch
  int64_t num_cancels_ = 0;
  std::unique_ptr<LocalEngine> local_;
  uint32_t num_requests_ = 0;
};

}  // namespace

std::unique_ptr<Command> MakeBenchEngineCommand() { return std::make_unique<BenchEngineCommand>(); }

}  // namespace deepinfer
