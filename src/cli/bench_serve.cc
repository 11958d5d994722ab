// deepinfer bench serve: puts a load on a running server and reports what its clients would see.

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>

#include "cli/bench_serve_client.h"
#include "cli/bench_serve_report.h"
#include "cli/bench_serve_workload.h"
#include "cli/commands.h"
#include "cli/io.h"
#include "cli/progress_line.h"
#include "cli/value_checks.h"

namespace deepinfer {
namespace {

namespace json = boost::json;

// The begin token of the model family; a server that adds one leaves it alone.
constexpr int32_t kBeginId = 0;

// What goes on in a run.
std::string TextOf(const LoadState& state) {
  return fmt::format("finished, {} running, {} failed, {:.0f} events/s", state.running,
                     state.failed,
                     state.seconds > 0 ? static_cast<double>(state.events) / state.seconds : 0.0);
}

class BenchServeCommand final : public Command {
 public:
  CLI::App* Register(CLI::App* app) override {
    CLI::App* c = app->get_subcommand("bench")->add_subcommand(
        "serve", "Put a load on a running server over HTTP");
    RegisterTarget(c);
    RegisterLoad(c);
    c->footer(
        "Examples:\n"
        "  deepinfer bench serve --requests 200 --concurrency 8 --input-len 512 --output-len 64\n"
        "  deepinfer bench serve --rate 4 --requests 500 --shared-prefix 0.8 --prefixes 5\n"
        "  deepinfer bench serve --sweep 1,2,4,8,16 --requests 64 --plot sweep.svg\n"
        "  deepinfer bench serve --trace trace.jsonl --trace-requests 300 --json result.json");
    return c;
  }

  int Run(const FlagOrigins&) override {
    const Status status = Bench();
    return status.ok() ? kExitOk : ReportFailure(status);
  }

 private:
  void RegisterTarget(CLI::App* c) {
    c->add_option("--url", url_, "Server, as http://host:port")->capture_default_str();
    c->add_option("--model", model_, "Model name to ask for; default: the first the server lists");
    c->add_option("--api-key-file", api_key_file_, "File whose first line is the key to send");
    c->add_option("--vocab-size", vocab_size_,
                  "Prompts are drawn from the ids below; 0 = ask the server")
        ->check(NotNegative())
        ->capture_default_str();
    c->add_option("--request-timeout", timeout_s_, "Seconds one request may take")
        ->check(Positive())
        ->capture_default_str();
    c->add_option("--json", json_file_, "Write the reports to this file as JSON");
    c->add_option("--plot", plot_file_, "Write throughput against speed per user as SVG");
  }

  void RegisterLoad(CLI::App* c) {
    c->add_option("--requests,--num-prompts", synthetic_.num_requests, "Requests of each run")
        ->check(CLI::Range(1, 10'000'000))
        ->capture_default_str();
    c->add_option("--concurrency,--max-concurrency", concurrency_,
                  "Requests in flight: of a closed loop, or the limit of an open one (0 = none)")
        ->check(CLI::Range(0, 100'000));
    c->add_option("--rate,--request-rate", synthetic_.rate_per_s,
                  "Open loop: mean arrivals per second; 0 = closed loop")
        ->check(NotNegative())
        ->capture_default_str();
    c->add_option("--burstiness", synthetic_.burstiness,
                  "Gaps of an open loop: 1 = Poisson, 0 = even")
        ->check(CLI::Range(0.0, 1.0))
        ->capture_default_str();
    c->add_option("--sweep", sweep_, "Closed loops with each of these concurrencies")
        ->delimiter(',')
        ->check(Positive());
    c->add_option("--input-len", input_,
                  "Prompt tokens: N, LOW:HIGH, normal:MEAN:DEVIATION, "
                  "lognormal:MEDIAN:SIGMA")
        ->capture_default_str();
    c->add_option("--output-len", output_, "Generated tokens, likewise")->capture_default_str();
    c->add_option("--shared-prefix", synthetic_.shared_share,
                  "Share of each prompt taken from a common text")
        ->check(CLI::Range(0.0, 1.0))
        ->capture_default_str();
    c->add_option("--prefixes", synthetic_.num_prefixes, "Number of common texts")
        ->check(Positive())
        ->capture_default_str();
    c->add_option("--trace", trace_file_,
                  "Lengths and arrivals from a file: JSON lines (timestamp, input_length, "
                  "output_length, hash_ids) or CSV (TIMESTAMP,ContextTokens,GeneratedTokens)");
    c->add_option("--trace-requests", trace_.max_requests, "Requests of the trace; 0 = all")
        ->check(NotNegative())
        ->capture_default_str();
    c->add_option("--trace-time-scale", trace_.time_scale, "Factor of the gaps; 0 = all at once")
        ->check(NotNegative())
        ->capture_default_str();
    c->add_option("--trace-length-scale", trace_.length_scale, "Factor of the lengths")
        ->check(Positive())
        ->capture_default_str();
    c->add_option("--trace-max-input", trace_.max_input_tokens,
                  "Leave out prompts of the trace with more tokens; 0 = none")
        ->check(NotNegative())
        ->capture_default_str();
    c->add_option("--temperature", temperature_, "Sampling temperature")
        ->check(CLI::Range(0.0, 2.0))
        ->capture_default_str();
    c->add_option("--seed", synthetic_.seed, "Seed of lengths, arrivals and prompts")
        ->capture_default_str();
  }

  Status Bench() {
    DI_ASSIGN_OR_RETURN(LoadTarget target, LoadTarget::Parse(url_));
    DI_RETURN_IF_ERROR(PrepareTarget(&target));
    DI_RETURN_IF_ERROR(PrepareRequests());
    std::vector<int64_t> levels = sweep_;
    const bool open = synthetic_.rate_per_s > 0 || !trace_file_.empty();
    if (levels.empty()) levels = {concurrency_ > 0 || open ? concurrency_ : 1};
    if (open && !sweep_.empty()) {
      return InvalidRequest("--sweep runs closed loops: leave out --rate and --trace");
    }
    std::vector<LoadTestReport> reports;
    for (const int64_t level : levels) {
      DI_ASSIGN_OR_RETURN(LoadTestReport report, RunOnce(target, level, open));
      DI_RETURN_IF_ERROR(PrintLine(ReportText(report)));
      reports.push_back(std::move(report));
    }
    DI_RETURN_IF_ERROR(WriteFiles(reports));
    const bool all_failed = std::all_of(reports.begin(), reports.end(),
                                        [](const LoadTestReport& r) { return r.num_ok == 0; });
    return all_failed ? Unavailable("every request failed") : OkStatus();
  }

  // Asks the server what the flags left open.
  Status PrepareTarget(LoadTarget* target) {
    if (!api_key_file_.empty()) {
      DI_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(api_key_file_));
      target->authorization = "Bearer " + text.substr(0, text.find_first_of("\r\n"));
    }
    if (model_.empty()) {
      DI_ASSIGN_OR_RETURN(const std::string body, HttpGet(*target, "/v1/models"));
      boost::system::error_code error;
      const json::value models = json::parse(body, error);
      if (!error) {
        if (const auto* id = models.find_pointer("/data/0/id", error)) {
          if (id->is_string()) model_ = id->get_string();
        }
      }
      if (model_.empty()) return Unavailable("the server lists no model; use --model");
    }
    if (vocab_size_ == 0) {
      DI_ASSIGN_OR_RETURN(const std::string body, HttpGet(*target, "/tokenizer_info"));
      boost::system::error_code error;
      const json::value info = json::parse(body, error);
      const json::value* size = error ? nullptr : info.find_pointer("/vocab_size", error);
      if (size == nullptr || !size->is_int64()) {
        return Unavailable("the server tells no vocabulary size; use --vocab-size");
      }
      vocab_size_ = static_cast<int32_t>(size->get_int64());
    }
    return OkStatus();
  }

  Status PrepareRequests() {
    if (!trace_file_.empty()) {
      DI_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(trace_file_));
      DI_ASSIGN_OR_RETURN(requests_, ParseTrace(text, trace_));
      return OkStatus();
    }
    DI_ASSIGN_OR_RETURN(synthetic_.input, LengthDistribution::Parse(input_));
    DI_ASSIGN_OR_RETURN(synthetic_.output, LengthDistribution::Parse(output_));
    requests_ = MakeSynthetic(synthetic_);
    return OkStatus();
  }

  std::string Body(int64_t index) const {
    const WorkloadRequest& request = requests_[static_cast<size_t>(index)];
    return fmt::format(
        R"({{"model":{},"prompt":{},"max_tokens":{},"temperature":{},"seed":{},)"
        R"("ignore_eos":true,"stream":true,"stream_options":{{"include_usage":true}}}})",
        JsonString(model_), IdArrayJson(PromptIds(request, kBeginId, vocab_size_)),
        request.output_tokens, temperature_, index);
  }

  Result<LoadTestReport> RunOnce(const LoadTarget& target, int64_t concurrency, bool open) const {
    LoadPlan plan;
    plan.path = "/v1/completions";
    plan.num_requests = static_cast<int64_t>(requests_.size());
    plan.body = [this](int64_t index) { return Body(index); };
    if (open) {
      plan.due_s = [this](int64_t index) {
        return requests_[static_cast<size_t>(index)].arrival_s;
      };
    }
    plan.max_concurrency = concurrency;
    plan.timeout_s = timeout_s_;
    const ProgressLine line(plan.num_requests);
    DI_ASSIGN_OR_RETURN(const LoadResult result, RunLoad(target, plan, [&](const LoadState& state) {
                          line.Show(state.finished, TextOf(state));
                        }));
    return MakeReport(open ? "open loop" : fmt::format("concurrency {}", concurrency), concurrency,
                      result.duration_s, result.outcomes);
  }

  Status WriteFiles(const std::vector<LoadTestReport>& reports) const {
    if (!json_file_.empty()) {
      std::string text = "[";
      for (const LoadTestReport& report : reports) {
        if (text.size() > 1) text += ",\n";
        text += ReportJson(report);
      }
      DI_RETURN_IF_ERROR(WriteTextFile(json_file_, text + "]\n"));
    }
    if (plot_file_.empty()) return OkStatus();
    return WriteTextFile(
        plot_file_,
        ThroughputSvg(fmt::format("{}, {} in, {} out", model_, input_, output_), reports));
  }

  std::string url_ = "http://127.0.0.1:8000";
  std::string model_, api_key_file_, json_file_, plot_file_, trace_file_;
  std::string input_ = "128", output_ = "64";
  int32_t vocab_size_ = 0;
  int64_t concurrency_ = 0;
  std::vector<int64_t> sweep_;
  double temperature_ = 0;
  double timeout_s_ = 600;
  SyntheticWorkload synthetic_;
  TraceOptions trace_;
  std::vector<WorkloadRequest> requests_;
};

}  // namespace

std::unique_ptr<Command> MakeBenchServeCommand() { return std::make_unique<BenchServeCommand>(); }

}  // namespace deepinfer
