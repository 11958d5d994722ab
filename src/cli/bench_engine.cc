// deepinfer bench engine: what scheduling costs and what clients of a loaded engine see.

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <future>
#include <mutex>
#include <thread>

#include "base/philox.h"
#include "cli/bench_flags.h"
#include "cli/commands.h"
#include "cli/generation.h"

namespace deepinfer {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kPromptSeed = 1;
constexpr int64_t kProfileTimeoutUs = 60'000'000;
// A profile begins this far into an answer, when every request decodes.
constexpr int32_t kWarmTokens = 8;

double Micros(Clock::duration d) { return std::chrono::duration<double, std::micro>(d).count(); }

double Percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double rank = std::ceil(share * static_cast<double>(values.size()));
  return values[static_cast<size_t>(std::max(1.0, rank)) - 1];
}

// Takes the events of several requests and when they came.
class Receiver {
 public:
  TokenSink Sink() {
    size_t index = 0;
    {
      const std::lock_guard lock(mutex_);
      index = arrivals_.size();
      arrivals_.emplace_back();
      ++running_;
    }
    return [this, index](const TokenEvent& event) {
      const std::lock_guard lock(mutex_);
      for (size_t i = 0; i < event.ids.size(); ++i) arrivals_[index].push_back(Clock::now());
      if (event.finish != FinishReason::kNone) {
        last_.push_back(event);
        --running_;
      }
      changed_.notify_all();
    };
  }

  void WaitForTokens(size_t of_each) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] {
      return running_ == 0 || std::all_of(arrivals_.begin(), arrivals_.end(),
                                          [&](const auto& a) { return a.size() >= of_each; });
    });
  }
  void WaitAll() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return running_ == 0; });
  }

  // After WaitAll.
  const std::vector<std::vector<Clock::time_point>>& arrivals() const { return arrivals_; }
  const std::vector<TokenEvent>& last() const { return last_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::vector<Clock::time_point>> arrivals_;
  std::vector<TokenEvent> last_;
  int running_ = 0;
};

class BenchEngineCommand final : public Command {
 public:
  CLI::App* Register(CLI::App* app) override {
    CLI::App* c = app->get_subcommand("bench")->add_subcommand(
        "engine", "Host time of a step, batch scaling, gaps between tokens beside a long prompt");
    flags_.Register(c);
    c->add_option("--batches", batches_, "Requests that decode together")
        ->delimiter(',')
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    c->add_option("--gen", gen_len_, "Tokens of each answer")
        ->check(CLI::Range(2 * kWarmTokens, 1 << 20))
        ->capture_default_str();
    c->add_option("--long-prompt", long_prompt_, "Tokens of the prompt beside decoding requests")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    c->add_option("--cancels", num_cancels_, "Requests cancelled at random moments")
        ->check(CLI::NonNegativeNumber)
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
      options.model.max_positions = long_prompt_ + gen_len_ + 1;
      EngineOptions engine;
      engine.max_model_len = options.model.max_positions;
      engine.max_num_seqs = *std::max_element(batches_.begin(), batches_.end()) + 1;
      engine.prefix_cache = false;
      // Random prompts say nothing about drafts.
      engine.speculation.enabled = false;
      DI_ASSIGN_OR_RETURN(local_, LocalEngine::Open(dir, options, engine));
      if (local_->engine().max_model_len() < options.model.max_positions) {
        return InvalidRequest("--long-prompt plus --gen exceed the model's positions");
      }
      DI_RETURN_IF_ERROR(Measure(threads, &report));
      local_.reset();
    }
    return flags_.Publish(std::move(report));
  }

  Status Measure(int threads, BenchReport* report) {
    const std::string suffix = fmt::format(" threads {}", threads);
    // Batches in turn within a round, so that a disturbance meets all of them.
    std::vector<BenchRow> decode, host;
    for (int32_t batch : batches_) {
      decode.push_back({fmt::format("decode batch {}{}", batch, suffix), "tok/s", {}, {}});
      host.push_back({fmt::format("host time batch {}{}", batch, suffix), "us/step", {}, {}});
    }
    std::vector<std::vector<StepTrace>> traces(batches_.size());
    for (int round = 0; round <= flags_.rounds; ++round) {
      for (size_t i = 0; i < batches_.size(); ++i) {
        DI_RETURN_IF_ERROR(DecodeTogether(batches_[i], round, &decode[i], &host[i], &traces[i]));
      }
    }
    const double single = Summarize(decode.front().samples).median;
    for (size_t i = 0; i < batches_.size(); ++i) {
      decode[i].facts = {{"times batch " + std::to_string(batches_.front()),
                          Summarize(decode[i].samples).median / single}};
      host[i].facts = HostFacts(traces[i]);
      report->rows.push_back(std::move(decode[i]));
      report->rows.push_back(std::move(host[i]));
    }
    DI_RETURN_IF_ERROR(BesideALongPrompt(suffix, report));
    return CancelMany(suffix, report);
  }

  EngineRequest Request(int32_t prompt_len, int32_t max_tokens) {
    EngineRequest r;
    r.request_id = "bench-" + std::to_string(++num_requests_);
    const auto vocab = static_cast<uint32_t>(local_->bundle().model->config().vocab_size);
    for (int32_t i = 0; i < prompt_len; ++i) {
      const PhiloxBlock bits =
          RandomBlock(kPromptSeed, static_cast<uint64_t>(i), RandomPurpose::kSample, num_requests_);
      // Ids below 3 are begin, end and pad.
      r.prompt_ids.push_back(3 + static_cast<int32_t>(bits[0] % (vocab - 3)));
    }
    r.sampling.temperature = 0.0f;
    r.sampling.max_tokens = max_tokens;
    r.sampling.ignore_eos = true;
    return r;
  }

  Status SubmitMany(int32_t num, int32_t prompt_len, Receiver* receiver) {
    for (int32_t i = 0; i < num; ++i) {
      DI_RETURN_IF_ERROR(local_->engine().Submit(Request(prompt_len, gen_len_), receiver->Sink()));
    }
    return OkStatus();
  }

  // `batch` short prompts decode together; speed from when all of them do.
  Status DecodeTogether(int32_t batch, int round, BenchRow* decode, BenchRow* host,
                        std::vector<StepTrace>* traces) {
    Receiver receiver;
    DI_RETURN_IF_ERROR(SubmitMany(batch, 16, &receiver));
    receiver.WaitForTokens(kWarmTokens);
    std::promise<std::vector<StepTrace>> promise;
    auto profile = promise.get_future();
    // Over before the first answer is.
    const int32_t steps = std::min(kMaxProfileSteps, gen_len_ - 2 * kWarmTokens + 1);
    DI_RETURN_IF_ERROR(local_->engine().Profile(
        steps, SteadyClock().NowUs() + kProfileTimeoutUs,
        [&](std::vector<StepTrace> recorded) { promise.set_value(std::move(recorded)); }));
    std::vector<StepTrace> taken = profile.get();
    receiver.WaitAll();
    if (round == 0) return OkStatus();
    std::erase_if(taken, [&](const StepTrace& s) { return s.num_sequences != batch; });
    if (taken.empty()) return Unavailable("no step held all requests: raise --gen");
    Clock::time_point begin = Clock::time_point::min(), end = Clock::time_point::max();
    for (const auto& a : receiver.arrivals()) {
      begin = std::max(begin, a.front());
      end = std::min(end, a.back());
    }
    double tokens = 0;
    for (const auto& a : receiver.arrivals()) {
      tokens += static_cast<double>(std::count_if(
          a.begin(), a.end(), [&](Clock::time_point t) { return t > begin && t <= end; }));
    }
    decode->samples.push_back(tokens / (Micros(end - begin) * 1e-6));
    double host_us = 0;
    for (const StepTrace& s : taken) host_us += HostUs(s);
    host->samples.push_back(host_us / static_cast<double>(taken.size()));
    traces->insert(traces->end(), taken.begin(), taken.end());
    return OkStatus();
  }

  // What is not the model: planning, sampling, taking over and delivering results.
  static double HostUs(const StepTrace& s) {
    return static_cast<double>((s.launched_us - s.plan_us) + (s.end_us - s.computed_us) +
                               (s.processed_us - s.process_us));
  }

  static std::vector<BenchFact> HostFacts(const std::vector<StepTrace>& traces) {
    const auto median = [&](auto part) {
      std::vector<double> values;
      for (const StepTrace& s : traces) values.push_back(static_cast<double>(part(s)));
      return Percentile(std::move(values), 0.5);
    };
    std::vector<double> errors;
    for (const StepTrace& s : traces) {
      const auto measured = static_cast<double>(s.end_us - s.begin_us);
      if (s.predicted_us > 0) errors.push_back(std::abs(s.predicted_us - measured) / measured);
    }
    double error = 0;
    for (double e : errors) error += e / static_cast<double>(errors.size());
    const double step = median([](const StepTrace& s) { return s.end_us - s.begin_us; });
    return {
        {"plan us", median([](const StepTrace& s) { return s.launched_us - s.plan_us; })},
        {"sample us", median([](const StepTrace& s) { return s.end_us - s.computed_us; })},
        {"process us", median([](const StepTrace& s) { return s.processed_us - s.process_us; })},
        {"to delivery us", median([](const StepTrace& s) { return s.processed_us - s.end_us; })},
        {"step us", step},
        {"% of step", 100 * median(HostUs) / step},
        {"prediction error %", 100 * error}};
  }

  // Gaps between the tokens of decoding requests while a long prompt is computed.
  Status BesideALongPrompt(const std::string& suffix, BenchReport* report) {
    const int32_t batch = *std::max_element(batches_.begin(), batches_.end());
    BenchRow alone{fmt::format("gap p99 batch {}{}", batch, suffix), "ms", {}, {}};
    BenchRow beside{alone.name + fmt::format(" beside a prompt of {}", long_prompt_), "ms", {}, {}};
    BenchRow start{fmt::format("arrival to first chunk batch {}{}", batch, suffix), "ms", {}, {}};
    for (int round = 0; round <= flags_.rounds; ++round) {
      Receiver decoding, prompt;
      DI_RETURN_IF_ERROR(SubmitMany(batch, 16, &decoding));
      decoding.WaitForTokens(static_cast<size_t>(gen_len_) / 3);
      const Clock::time_point arrival = Clock::now();
      DI_RETURN_IF_ERROR(local_->engine().Submit(Request(long_prompt_, 1), prompt.Sink()));
      prompt.WaitAll();
      const Clock::time_point computed = Clock::now();
      decoding.WaitAll();
      if (round == 0) continue;
      std::vector<double> before, during;
      for (const auto& a : decoding.arrivals()) {
        for (size_t i = 1; i < a.size(); ++i) {
          std::vector<double>* gaps = a[i] <= arrival ? &before : &during;
          if (a[i] <= computed) gaps->push_back(Micros(a[i] - a[i - 1]) * 1e-3);
        }
      }
      alone.samples.push_back(Percentile(before, 0.99));
      beside.samples.push_back(Percentile(during, 0.99));
      start.samples.push_back(static_cast<double>(prompt.last().front().counters.queue_us) * 1e-3);
    }
    for (BenchRow* row : {&alone, &beside, &start}) report->rows.push_back(std::move(*row));
    return OkStatus();
  }

  // Requests cancelled at random moments; what is held afterwards is leaked.
  Status CancelMany(const std::string& suffix, BenchReport* report) {
    if (num_cancels_ == 0) return OkStatus();
    Engine& engine = local_->engine();
    const Clock::time_point begin = Clock::now();
    constexpr int64_t kLive = 64;
    std::vector<std::string> live;
    for (int64_t i = 0; i < num_cancels_; ++i) {
      const uint32_t r =
          RandomBlock(kPromptSeed, static_cast<uint64_t>(i), RandomPurpose::kAccept, 0)[0];
      EngineRequest request = Request(1 + static_cast<int32_t>(r % 40), 8);
      live.push_back(request.request_id);
      DI_RETURN_IF_ERROR(engine.Submit(std::move(request), [](const TokenEvent&) {}));
      if (static_cast<int64_t>(live.size()) < kLive) continue;
      std::swap(live[r % kLive], live.back());
      engine.Cancel(live.back());
      live.pop_back();
    }
    for (const std::string& id : live) engine.Cancel(id);
    engine.Drain(SteadyClock().NowUs() + kProfileTimeoutUs);
    // The step in flight may still hold what ended.
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    const EngineStatistics s = engine.Statistics();
    const double seconds = Micros(Clock::now() - begin) * 1e-6;
    report->rows.push_back(
        {"cancels" + suffix,
         "1/s",
         {static_cast<double>(num_cancels_) / seconds},
         {{"number", static_cast<double>(num_cancels_)},
          {"cancelled", static_cast<double>(s.cancels)},
          {"blocks leaked", static_cast<double>(s.blocks_acquired - s.blocks_released)},
          {"slots leaked", static_cast<double>(s.slots_acquired - s.slots_released)}}});
    return OkStatus();
  }

  BenchFlags flags_;
  std::vector<int32_t> batches_ = {1, 2, 4, 8};
  int32_t gen_len_ = 64;
  int32_t long_prompt_ = 2048;
  int64_t num_cancels_ = 0;
  std::unique_ptr<LocalEngine> local_;
  uint32_t num_requests_ = 0;
};

}  // namespace

std::unique_ptr<Command> MakeBenchEngineCommand() { return std::make_unique<BenchEngineCommand>(); }

}  // namespace deepinfer
