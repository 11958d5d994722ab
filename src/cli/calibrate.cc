// deepinfer calibrate: how far the confidences of the draft model can be trusted, and the
// temperatures that make them probabilities (dspark.md §7).

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <sstream>

#include "base/log.h"
#include "cli/calibration_file.h"
#include "cli/commands.h"
#include "cli/generation.h"
#include "cli/io.h"
#include "cli/model_flags.h"
#include "cli/value_checks.h"
#include "sched/verify_calibration.h"

namespace deepinfer {
namespace {

using Samples = std::vector<ConfidenceSample>;

// Requests answered at the same time: enough to keep the operators busy.
constexpr int32_t kNumSequences = 8;

class CalibrateCommand final : public Command {
 public:
  CLI::App* Register(CLI::App* app) override {
    CLI::App* c = app->add_subcommand(
        "calibrate", "Measure the confidence of drafts and fit temperatures to it");
    flags_.Register(c, true, kServingNumerics);
    c->add_option("--prompts", prompts_file_,
                  "File with one JSON object a line whose prompt_ids are the prompt's token ids; "
                  "every second line judges the fit on the others")
        ->required();
    c->add_option("--out", out_file_,
                  "File for the temperatures, read by --confidence-calibration");
    c->add_option("--max-tokens", max_tokens_, "Tokens of an answer at most")
        ->check(Positive())
        ->capture_default_str();
    c->add_option("--temperature", temperature_, "Of the answers; 0 = greedy")
        ->check(NotNegative())
        ->capture_default_str();
    c->footer(
        "Example:\n  deepinfer calibrate MODEL --prompts prompts.jsonl --out calibration.json");
    return c;
  }

  int Run(const FlagOrigins&) override {
    // Standard output is for results.
    InitLogging(LogLevel::kWarning, LogFormat::kText);
    const Status status = Calibrate();
    return status.ok() ? kExitOk : ReportFailure(status);
  }

 private:
  Status Calibrate() {
    DI_ASSIGN_OR_RETURN(const auto prompts, ReadPrompts());
    DI_ASSIGN_OR_RETURN(const std::filesystem::path dir, flags_.ModelDir());
    DI_ASSIGN_OR_RETURN(const BundleOptions bundle, flags_.Bundle());
    Samples samples;
    EngineOptions engine;
    engine.max_model_len = bundle.model.max_positions;
    engine.max_num_seqs = kNumSequences;
    engine.max_queued_requests = static_cast<int32_t>(prompts.size());
    // Everything is verified, so that no confidence decides what is measured.
    engine.speculation.verify = VerifyPolicy::kFixed;
    engine.speculation.on_verified = [&samples](std::span<const float> raw, int32_t num_accepted) {
      samples.push_back({{raw.begin(), raw.end()}, num_accepted});
    };
    DI_ASSIGN_OR_RETURN(const auto local, LocalEngine::Open(dir, bundle, engine));
    const ModelConfig& config = local->bundle().model->config();
    if (config.dspark.num_layers == 0) return InvalidRequest("the model has no draft layers");

    Samples fitted_on, judged_on;
    for (const size_t half : {size_t{0}, size_t{1}}) {
      DI_RETURN_IF_ERROR(Answer(&local->engine(), prompts, half));
      (half == 0 ? fitted_on : judged_on) = std::move(samples);
      samples.clear();
    }
    if (fitted_on.empty() || judged_on.empty()) {
      return InvalidRequest(
          "the prompts gave no drafts: there must be at least two, with answers "
          "longer than a token");
    }
    const auto num_drafts = static_cast<size_t>(config.dspark.block_size);
    return Report(fitted_on, judged_on, FitTemperatures(fitted_on, num_drafts));
  }

  Result<std::vector<std::vector<int32_t>>> ReadPrompts() const {
    DI_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(prompts_file_));
    std::istringstream lines(text);
    std::vector<std::vector<int32_t>> prompts;
    for (std::string line; std::getline(lines, line);) {
      if (line.empty()) continue;
      Result<std::vector<int32_t>> ids = ParseIdObject(line, "prompt_ids");
      const std::string place = fmt::format("{} line {}", prompts_file_, prompts.size() + 1);
      if (!ids.ok()) return ids.status().Annotate(place);
      prompts.push_back(*std::move(ids));
    }
    return prompts;
  }

  // Answers every second prompt, from `first` on.
  Status Answer(Engine* engine, const std::vector<std::vector<int32_t>>& prompts, size_t first) {
    std::mutex mutex;
    std::condition_variable changed;
    size_t num_running = 0;
    Status failed;
    for (size_t i = first; i < prompts.size(); i += 2) {
      EngineRequest r;
      r.request_id = std::to_string(i);
      r.prompt_ids = prompts[i];
      r.sampling.temperature = temperature_;
      r.sampling.max_tokens = max_tokens_;
      r.sampling.has_seed = true;
      r.sampling.seed = i;
      {
        const std::lock_guard lock(mutex);
        ++num_running;
      }
      const Status submitted = engine->Submit(std::move(r), [&](const TokenEvent& event) {
        if (event.finish == FinishReason::kNone) return;
        const std::lock_guard lock(mutex);
        if (!event.status.ok()) failed = event.status;
        --num_running;
        changed.notify_one();
      });
      if (submitted.ok()) continue;
      const std::lock_guard lock(mutex);
      failed = submitted;
      --num_running;
      break;
    }
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return num_running == 0; });
    return failed;
  }

  Status Report(const Samples& fitted_on, const Samples& judged_on,
                const std::vector<double>& temperatures) const {
    const std::vector<double> ones(temperatures.size(), 1.0);
    CalibrationFile file{temperatures, prompts_file_, static_cast<int64_t>(fitted_on.size()),
                         MeanCalibrationError(judged_on, ones),
                         MeanCalibrationError(judged_on, temperatures)};
    fmt::print("fitted on {} verifications, judged on {} others\n", fitted_on.size(),
               judged_on.size());
    fmt::print("draft  temperature  calibration error before  after\n");
    for (size_t k = 1; k <= temperatures.size(); ++k) {
      fmt::print("{:5}  {:11.3f}  {:24.4f}  {:.4f}\n", k, temperatures[k - 1],
                 CalibrationError(MeasureReliability(judged_on, ones, k)),
                 CalibrationError(MeasureReliability(judged_on, temperatures, k)));
    }
    fmt::print("mean                {:24.4f}  {:.4f}\n", file.ece_before, file.ece_after);
    PrintReliability("before", judged_on, ones);
    PrintReliability("after", judged_on, temperatures);
    if (out_file_.empty()) return OkStatus();
    return WriteTextFile(out_file_, FormatCalibration(file) + "\n");
  }

  // All drafts together.
  static void PrintReliability(std::string_view when, const Samples& samples,
                               const std::vector<double>& temperatures) {
    Reliability sum{};
    for (size_t k = 1; k <= temperatures.size(); ++k) {
      const Reliability one = MeasureReliability(samples, temperatures, k);
      for (size_t b = 0; b < sum.size(); ++b) {
        const auto count = static_cast<double>(one[b].count);
        sum[b].count += one[b].count;
        sum[b].mean_predicted += count * one[b].mean_predicted;
        sum[b].share_accepted += count * one[b].share_accepted;
      }
    }
    fmt::print("\n{}: predicted survival, share accepted, drafts\n", when);
    for (const ReliabilityBin& bin : sum) {
      if (bin.count == 0) continue;
      const auto count = static_cast<double>(bin.count);
      fmt::print("{:9.3f}  {:5.3f}  {}\n", bin.mean_predicted / count, bin.share_accepted / count,
                 bin.count);
    }
  }

  ModelFlags flags_;
  std::string prompts_file_, out_file_;
  int32_t max_tokens_ = 96;
  float temperature_ = 0.0f;
};

}  // namespace

std::unique_ptr<Command> MakeCalibrateCommand() { return std::make_unique<CalibrateCommand>(); }

}  // namespace deepinfer
