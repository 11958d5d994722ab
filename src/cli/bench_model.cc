// deepinfer bench model: prefill, decode in batches and at long contexts, resident memory.

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>

#include "base/process_stats.h"
#include "cli/bench_ceilings.h"
#include "cli/bench_flags.h"
#include "cli/bench_growth.h"
#include "cli/bench_sequences.h"
#include "cli/commands.h"
#include "cli/io.h"
#include "cli/load_display.h"
#include "cli/progress_line.h"
#include "cli/value_checks.h"
#include "model/model_stats.h"

namespace deepinfer {
namespace {

constexpr int kCeilingRounds = 5;
// What resident memory may exceed the checkpoint and the pools by (docs/benchmarks.md §1).
constexpr double kCheckpointShare = 1.05;
constexpr int64_t kOtherMemoryBytes = int64_t{64} << 20;

enum class StepKind : uint8_t { kPrefill, kDecode };

struct Case {
  StepKind kind = StepKind::kPrefill;
  int32_t batch = 1;
  int32_t context = 0;  // decode: tokens before the first step; prefill: length of the prompt

  std::string Work() const { return kind == StepKind::kPrefill ? "prefill" : "decode"; }
  // What differs from it in no more than the tokens.
  std::string Series(int threads) const {
    if (kind == StepKind::kPrefill) return fmt::format("prefill threads {}", threads);
    return fmt::format("decode batch {} threads {}", batch, threads);
  }
  std::string Name(int threads) const {
    if (kind == StepKind::kPrefill) return fmt::format("prefill {} threads {}", context, threads);
    return fmt::format("decode batch {} context {} threads {}", batch, context, threads);
  }
};

// Cases on the same caches: those of all prompts, or of one context.
struct CaseGroup {
  std::vector<Case> cases;
  int32_t num_sequences = 0;
  int32_t num_tokens = 0;  // of a sequence
  int32_t context = 0;     // tokens that the caches hold before a sample
};

struct Plan {
  std::vector<CaseGroup> groups;
  int32_t steps = 0;  // decode steps of a sample
  int32_t chunk = 0;  // prompt rows of a step
};

// What one case reached on one number of threads.
struct CaseResult {
  Case measured;
  BenchRow row;
  CpuTimes cpu_times;  // spent on all samples
};

// One model on one number of threads.
struct Lane {
  int threads = 0;
  ModelBundle bundle;
  Ceilings ceilings;
  std::vector<CaseResult> results;
};

// Tokens a second of one run of the case; its CPU times are added to the sum.
Result<double> Sample(const Plan& plan, const Case& c, const BenchSequences& sequences,
                      Model* model, CpuTimes* cpu_times) {
  const CpuTimes before = ReadCpuTimes();
  const auto start = std::chrono::steady_clock::now();
  int64_t tokens = c.context;
  if (c.kind == StepKind::kPrefill) {
    DI_RETURN_IF_ERROR(sequences.Prefill(model, c.context, plan.chunk));
  } else {
    DI_RETURN_IF_ERROR(sequences.Decode(model, c.batch, c.context, plan.steps));
    tokens = int64_t{c.batch} * plan.steps;
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const CpuTimes after = ReadCpuTimes();
  cpu_times->running_ns += after.running_ns - before.running_ns;
  cpu_times->waiting_ns += after.waiting_ns - before.waiting_ns;
  return static_cast<double>(tokens) / seconds.count();
}

// Products of the linears run at the bf16 peak where the CPU multiplies bf16 pairs, else at the
// fp32 peak.
double PeakFlops(const Lane& lane, const BundleOptions& options) {
  const bool pairs =
      options.model.numerics != Numerics::kRef && options.isa >= IsaLevel::kAvx512Bf16;
  return 1e9 * (pairs ? lane.ceilings.bf16_gflop_per_s : lane.ceilings.fp32_gflop_per_s);
}

// Of the CPU time that the threads were ready to use, what they got.
double CpuShare(const CpuTimes& times) {
  const auto running = static_cast<double>(times.running_ns);
  return running == 0 ? 1 : running / (running + static_cast<double>(times.waiting_ns));
}

double FlopsPerToken(const ModelConfig& config, const Case& c) {
  if (c.kind == StepKind::kDecode) return FlopsPerRow(config, c.context).decode();
  const RowFlops row = FlopsPerRow(config, c.context / 2);
  const double tail = std::min(config.decoder_keep_rows(), c.context);
  return row.encoder + (tail * row.decoder + row.head) / c.context;
}

std::vector<BenchFact> FactsOf(const Case& c, const CpuTimes& cpu_times, const Lane& lane,
                               double peak_flops, double median) {
  const Model& model = *lane.bundle.model;
  const ModelConfig& config = model.config();
  const double flops = FlopsPerToken(config, c);
  double tokens = c.batch, bytes = 0;
  if (c.kind == StepKind::kDecode) {
    bytes = BytesPerDecodeStep(config, model.checkpoint(), c.batch, c.context).total();
  } else {
    tokens = c.context;
    bytes = BytesPerDecodeStep(config, model.checkpoint(), c.context, 0).weights;
  }
  const double read_bound = tokens * lane.ceilings.read_gb_per_s * 1e9 / bytes;
  const double compute_bound = peak_flops / flops;
  return {{"MB/token", bytes / tokens * 1e-6},
          {"GFLOP/token", flops * 1e-9},
          {"read bound", read_bound},
          {"compute bound", compute_bound},
          {"% of bound", 100 * median / std::min(read_bound, compute_bound)},
          {"cpu share", CpuShare(cpu_times)}};
}

// Resident memory beside what it may be at most, with these caches.
BenchRow MemoryRow(const Model& model, const BenchSequences& sequences) {
  const int64_t pools = model.workspace_bytes() + sequences.memory_bytes();
  const auto checkpoint = static_cast<double>(model.checkpoint().total_bytes());
  const ResidentMemory resident = ReadResidentMemory();
  const double limit =
      kCheckpointShare * checkpoint + static_cast<double>(pools + kOtherMemoryBytes);
  const auto mib = [](auto bytes) { return static_cast<double>(bytes) / (1 << 20); };
  return {"resident memory",
          "MiB",
          {mib(resident.total_bytes())},
          {{"checkpoint MiB", mib(checkpoint)},
           {"pools MiB", mib(pools)},
           {"anonymous MiB", mib(resident.anonymous_bytes)},
           {"file MiB", mib(resident.file_bytes)},
           {"huge page MiB", mib(model.checkpoint().HugePageBytes())},
           {"limit MiB", mib(limit)}}};
}

// Loads the model and measures the ceilings.
Status OpenLane(const std::filesystem::path& dir, BundleOptions options, Lane* lane) {
  options.num_threads = lane->threads;
  LoadProgress progress;
  {
    const LoadDisplay display(&progress, false);
    DI_ASSIGN_OR_RETURN(lane->bundle, ModelBundle::Load(dir, options, &progress));
  }
  lane->ceilings = BestOf(MeasureCeilings(options.isa, kCeilingRounds, lane->bundle.pool.get()));
  return OkStatus();
}

class BenchModelCommand final : public Command {
 public:
  CLI::App* Register(CLI::App* app) override {
    CLI::App* c = app->get_subcommand("bench")->add_subcommand(
        "model", "Prefill, decode in batches and at long contexts, resident memory");
    flags_.Register(c);
    c->add_option("--prompts", prompts_, "Prompt lengths of prefill; 0 = none")
        ->delimiter(',')
        ->check(NotNegative())
        ->capture_default_str();
    c->add_option("--batches", batches_, "Requests of a decode step; 0 = no decoding")
        ->delimiter(',')
        ->check(NotNegative())
        ->capture_default_str();
    c->add_option("--contexts", contexts_, "Context lengths of decoding")
        ->delimiter(',')
        ->check(Positive())
        ->capture_default_str();
    c->add_option("--steps", steps_, "Decode steps of a sample")
        ->check(Positive())
        ->capture_default_str();
    c->add_option("--chunk", chunk_, "Prompt rows of a step")
        ->check(Positive())
        ->capture_default_str();
    c->add_option("--plot", plot_file_,
                  "Also write as SVG how the cost of a token grows with context and prompt");
    c->footer(
        "Caches of a context are filled with random rows instead of a prefill.\n"
        "Example:\n"
        "  deepinfer bench model MODEL --thread-counts 1,2 --json after.json --compare "
        "before.json");
    return c;
  }

  int Run(const FlagOrigins&) override {
    const Status status = Bench();
    return status.ok() ? kExitOk : ReportFailure(status);
  }

 private:
  Status Bench() const {
    DI_ASSIGN_OR_RETURN(const std::filesystem::path dir, flags_.model.ModelDir());
    DI_ASSIGN_OR_RETURN(BundleOptions options, flags_.model.Bundle());
    DI_ASSIGN_OR_RETURN(const ModelConfig config, ModelConfig::Load(dir));
    const Plan plan = MakePlan(config.max_positions);
    options.model.max_positions = 1;
    for (const CaseGroup& group : plan.groups) {
      options.model.max_positions = std::max(options.model.max_positions, group.num_tokens);
    }

    BenchReport report{"model", dir.string(), ReadEnvironment(IsaLevelName(options.isa)), {}};
    std::vector<Lane> lanes;
    for (int threads : flags_.ThreadCounts()) {
      Lane& lane = lanes.emplace_back();
      lane.threads = threads;
      DI_RETURN_IF_ERROR(OpenLane(dir, options, &lane));
      if (lanes.size() > 1) continue;
      // Later lanes map the same files again, so only the first one stands for a server.
      DI_ASSIGN_OR_RETURN(BenchRow memory, MeasureMemory(plan, &lane));
      report.rows.push_back(std::move(memory));
    }
    DI_RETURN_IF_ERROR(MeasureSpeed(plan, &lanes));
    std::vector<GrowthSample> growth;
    for (Lane& lane : lanes) {
      const double peak = PeakFlops(lane, options);
      for (CaseResult& r : lane.results) {
        const double median = Summarize(r.row.samples).median;
        r.row.facts = FactsOf(r.measured, r.cpu_times, lane, peak, median);
        growth.push_back({r.measured.Series(lane.threads), r.measured.Work(), r.measured.context,
                          1e6 / median, FlopsPerToken(config, r.measured)});
        report.rows.push_back(std::move(r.row));
      }
    }
    if (!plot_file_.empty()) {
      DI_RETURN_IF_ERROR(WriteTextFile(plot_file_, GrowthSvg(dir.filename().string(), growth)));
    }
    return flags_.Publish(std::move(report));
  }

  Plan MakePlan(int32_t max_positions) const {
    Plan plan{{}, steps_, chunk_};
    const auto add = [&](CaseGroup group) {
      if (group.cases.empty()) return;
      if (group.num_tokens <= max_positions) {
        plan.groups.push_back(std::move(group));
      } else {
        Tell("left out: {} tokens exceed the model's {} positions\n", group.num_tokens,
             max_positions);
      }
    };
    for (int32_t prompt : prompts_) {
      if (prompt > 0) add({{{StepKind::kPrefill, 1, prompt}}, 1, prompt, 0});
    }
    for (int32_t context : contexts_) {
      CaseGroup group{{}, 0, context + steps_, context};
      for (int32_t batch : batches_) {
        if (batch > 0) group.cases.push_back({StepKind::kDecode, batch, context});
        group.num_sequences = std::max(group.num_sequences, batch);
      }
      add(std::move(group));
    }
    return plan;
  }

  static Result<std::unique_ptr<BenchSequences>> MakeSequences(const CaseGroup& group,
                                                               Model* model) {
    DI_ASSIGN_OR_RETURN(auto sequences,
                        BenchSequences::Create(model, group.num_sequences, group.num_tokens));
    if (group.context > 0) DI_RETURN_IF_ERROR(sequences->FillCaches(group.context));
    return sequences;
  }

  // Of the first group, after a run of each of its cases. resource_exhausted as Create.
  static Result<BenchRow> MeasureMemory(const Plan& plan, Lane* lane) {
    Model* model = lane->bundle.model.get();
    if (plan.groups.empty()) return InvalidRequest("no prompt and no batch is left to measure");
    const CaseGroup& group = plan.groups.front();
    DI_ASSIGN_OR_RETURN(const auto sequences, MakeSequences(group, model));
    CpuTimes unused;
    for (const Case& c : group.cases) {
      DI_RETURN_IF_ERROR(Sample(plan, c, *sequences, model, &unused).status());
    }
    return MemoryRow(*model, *sequences);
  }

  // Group by group: rounds over (case, lane), so that a disturbance meets all of them. The first
  // round only warms up.
  Status MeasureSpeed(const Plan& plan, std::vector<Lane>* lanes) const {
    int64_t num_samples = 0, done = 0;
    for (const CaseGroup& group : plan.groups) {
      num_samples += static_cast<int64_t>(group.cases.size() * lanes->size()) * (1 + flags_.rounds);
    }
    const ProgressLine progress(num_samples);
    for (const CaseGroup& group : plan.groups) {
      DI_ASSIGN_OR_RETURN(const auto sequences,
                          MakeSequences(group, lanes->front().bundle.model.get()));
      for (int round = 0; round <= flags_.rounds; ++round) {
        for (size_t i = 0; i < group.cases.size(); ++i) {
          for (Lane& lane : *lanes) {
            progress.Show(done++, group.cases[i].Name(lane.threads));
            DI_RETURN_IF_ERROR(MeasureCase(plan, group, i, *sequences, round == 0, &lane));
          }
        }
      }
    }
    return OkStatus();
  }

  static Status MeasureCase(const Plan& plan, const CaseGroup& group, size_t index,
                            const BenchSequences& sequences, bool warm_up, Lane* lane) {
    const Case& c = group.cases[index];
    CpuTimes cpu_times;
    DI_ASSIGN_OR_RETURN(const double speed,
                        Sample(plan, c, sequences, lane->bundle.model.get(), &cpu_times));
    if (warm_up) {
      lane->results.push_back({c, {c.Name(lane->threads), "tok/s", {}, {}}, {}});
      return OkStatus();
    }
    // The results of a group stand at the end, in the order of its cases.
    CaseResult& result =
        *(lane->results.end() - static_cast<ptrdiff_t>(group.cases.size() - index));
    result.row.samples.push_back(speed);
    result.cpu_times.running_ns += cpu_times.running_ns;
    result.cpu_times.waiting_ns += cpu_times.waiting_ns;
    return OkStatus();
  }

  BenchFlags flags_;
  std::vector<int32_t> prompts_ = {128, 512, 2048};
  std::vector<int32_t> batches_ = {1, 2, 4, 8, 16};
  std::vector<int32_t> contexts_ = {512, 4096, 32768};
  int32_t steps_ = 16;
  int32_t chunk_ = 512;
  std::string plot_file_;
};

}  // namespace

std::unique_ptr<Command> MakeBenchModelCommand() { return std::make_unique<BenchModelCommand>(); }

}  // namespace deepinfer
