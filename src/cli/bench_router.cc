// deepinfer bench router: what a gateway itself spends on a request and on a token event.

#include <fmt/core.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "base/clock.h"
#include "cli/bench_flags.h"
#include "cli/commands.h"
#include "cluster/gateway.h"
#include "cluster/incarnation.h"

namespace deepinfer {
namespace {

constexpr int kPromptTokens = 1000;
constexpr int kRequests = 2000;  // of one sample; all of them live at once
constexpr int kEvents = 50;      // of each

// Takes requests and keeps their sinks.
class IdleWorker final : public Worker {
 public:
  explicit IdleWorker(WorkerRole role) {
    WorkerInfo info;
    info.role = role;
    info.model_name = "bench";
    info.endpoint = "unix:/run/deepinfer/worker.sock";
    // As workers that share a persistent cache, so that keys of prompts are part of the time.
    info.kv_root = "bench";
    info.kv_namespace.emplace().fill('n');
    info.answers_probes = true;
    info_ = std::make_shared<const WorkerInfo>(std::move(info));
    queue_.incarnation = NewIncarnation();
  }
  WorkerInfo info() const override { return *info_; }
  std::shared_ptr<const WorkerInfo> shared_info() const override { return info_; }
  Status Submit(EngineRequest, TokenSink sink) override { return Take(std::move(sink)); }
  Status SubmitDecode(EngineRequest, TokenSink sink) override { return Take(std::move(sink)); }
  Status SubmitPrefill(EngineRequest, const std::string&, TokenSink sink) override {
    ++load_.running;
    prefills_.push_back(std::move(sink));
    return OkStatus();
  }
  std::optional<StoredPrefix> Probe(std::span<const BlockKey>, int32_t,
                                    std::chrono::microseconds) override {
    return StoredPrefix();
  }
  void Cancel(std::string_view) override {}
  LoadReport Load() const override { return load_; }
  bool healthy() const override { return true; }
  EngineStatistics Statistics() const override { return {}; }
  WorkerQueue Queue() const override { return queue_; }
  void Drain(int64_t) override {}

  void Send(int32_t index, FinishReason finish) {
    for (const TokenSink& sink : sinks_) {
      TokenEvent event;
      event.start_index = index;
      event.ids = {42};
      event.finish = finish;
      sink(std::move(event));
    }
    if (finish == FinishReason::kNone) return;
    sinks_.clear();
    prefills_.clear();
    load_ = {};
  }

 private:
  Status Take(TokenSink sink) {
    ++load_.running;
    sinks_.push_back(std::move(sink));
    return OkStatus();
  }

  std::shared_ptr<const WorkerInfo> info_;
  WorkerQueue queue_;
  LoadReport load_;
  std::vector<TokenSink> sinks_, prefills_;
};

// CPU time of this thread.
double CpuSeconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

class BenchRouterCommand final : public Command {
 public:
  CLI::App* Register(CLI::App* app) override {
    CLI::App* c = app->get_subcommand("bench")->add_subcommand(
        "router", "CPU time of a gateway per request and per token event, without workers");
    flags_.RegisterWithoutModel(c);
    c->add_option("--workers", num_workers_, "Numbers of workers to choose from")
        ->delimiter(',')
        ->capture_default_str();
    c->footer(
        "Prompts have 1000 tokens, whose keys are looked up in the cache of the cell; the way to "
        "it\n"
        "and the cost of HTTP and of text are not in it.\n"
        "Example:\n"
        "  deepinfer bench router --workers 4,64 --rounds 5");
    return c;
  }

  int Run(const FlagOrigins&) override {
    const Status status = Bench();
    return status.ok() ? kExitOk : ReportFailure(status);
  }

 private:
  Status Bench() {
    BenchReport report{"router", "", ReadEnvironment("none"), {}};
    for (const int number : num_workers_) {
      if (number < 1 || number > 10'000) return InvalidRequest("--workers: 1 to 10000");
      for (const bool split : {false, true}) {
        if (split && number < 2) continue;
        DI_RETURN_IF_ERROR(Measure(number, split, &report));
      }
    }
    return flags_.Publish(std::move(report));
  }

  Status Measure(int number, bool split, BenchReport* report) {
    const SteadyClock clock;
    std::vector<std::unique_ptr<Worker>> workers;
    std::vector<IdleWorker*> idle;
    for (int i = 0; i < number; ++i) {
      WorkerRole role = WorkerRole::kAll;
      if (split) role = i % 2 == 0 ? WorkerRole::kPrefill : WorkerRole::kDecode;
      auto worker = std::make_unique<IdleWorker>(role);
      idle.push_back(worker.get());
      workers.push_back(std::move(worker));
    }
    Gateway gateway({}, std::move(workers), &clock);
    const std::string name = fmt::format("{} {} workers", split ? "prefill/decode" : "all", number);
    BenchRow requests{name, "requests/s", {}, {}}, events{name + " events", "events/s", {}, {}};
    for (int round = 0; round < flags_.rounds; ++round) {
      const double begin = CpuSeconds();
      for (int i = 0; i < kRequests; ++i) {
        EngineRequest request;
        request.request_id = fmt::format("cmpl-{:024d}", i);
        request.prompt_ids.assign(kPromptTokens, i);
        DI_RETURN_IF_ERROR(gateway.Submit(std::move(request), [](const TokenEvent&) {}));
      }
      const double submitted = CpuSeconds();
      for (int n = 0; n < kEvents; ++n) {
        const bool last = n == kEvents - 1;
        for (IdleWorker* worker : idle) {
          worker->Send(n, last ? FinishReason::kStop : FinishReason::kNone);
        }
      }
      requests.samples.push_back(kRequests / (submitted - begin));
      events.samples.push_back(double{kRequests} * kEvents / (CpuSeconds() - submitted));
    }
    requests.facts.push_back({"µs/request", 1e6 / Summarize(requests.samples).median});
    report->rows.push_back(std::move(requests));
    report->rows.push_back(std::move(events));
    return OkStatus();
  }

  BenchFlags flags_;
  std::vector<int> num_workers_ = {4, 64};
};

}  // namespace

std::unique_ptr<Command> MakeBenchRouterCommand() { return std::make_unique<BenchRouterCommand>(); }

}  // namespace deepinfer
