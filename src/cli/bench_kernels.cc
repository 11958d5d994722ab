// deepinfer bench kernels: every operator over the shapes of a model, beside the ceilings.

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>

#include "cli/bench_ceilings.h"
#include "cli/bench_flags.h"
#include "cli/bench_kernel_cases.h"
#include "cli/commands.h"
#include "cli/progress_line.h"
#include "cli/value_checks.h"
#include "kernels/backends.h"

namespace deepinfer {
namespace {

constexpr int kCeilingRounds = 5;
constexpr int kMaxCallsPerSample = 10000;

// One number of threads.
struct Lane {
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<Operators> ops;
  Ceilings ceilings;
};

double SecondsOf(const KernelCase& c, Operators* ops, int calls) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) c.run(ops);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The calls that last about sample_s; the first one only warms up.
int CallsPerSample(const KernelCase& c, Operators* ops, double sample_s) {
  SecondsOf(c, ops, 1);
  const double seconds = std::max(1e-9, SecondsOf(c, ops, 1));
  return static_cast<int>(std::clamp(sample_s / seconds, 1.0, double{kMaxCallsPerSample}));
}

BenchRow RowOf(const KernelCase& c, const Lane& lane, const std::vector<double>& seconds) {
  BenchRow row;
  row.name = fmt::format("{} threads {}", c.name, lane.pool->num_threads());
  row.unit = "calls/s";
  for (double s : seconds) row.samples.push_back(1 / s);
  const double calls_per_s = Summarize(row.samples).median;
  const double peak =
      c.peak == PeakKind::kBf16 ? lane.ceilings.bf16_gflop_per_s : lane.ceilings.fp32_gflop_per_s;
  const double gb_per_s = c.bytes * calls_per_s * 1e-9, gflop_per_s = c.flops * calls_per_s * 1e-9;
  const double read_share = 100 * gb_per_s / lane.ceilings.read_gb_per_s;
  const double peak_share = 100 * gflop_per_s / peak;
  row.facts = {{"us", 1e6 / calls_per_s}, {"GB/s", gb_per_s},
               {"% of read", read_share}, {"GFLOP/s", gflop_per_s},
               {"% of peak", peak_share}, {"% of ceiling", std::max(read_share, peak_share)}};
  return row;
}

// Rounds over (case, lane), so that a disturbance meets all of them.
std::vector<BenchRow> MeasureSuite(KernelSuite* suite, const std::vector<Lane>& lanes, int rounds,
                                   double sample_s) {
  const std::vector<KernelCase> cases = suite->Cases();
  struct Measured {
    int calls = 1;
    std::vector<double> seconds;
  };
  std::vector<Measured> measured(cases.size() * lanes.size());
  for (int round = -1; round < rounds; ++round) {
    for (size_t i = 0; i < cases.size(); ++i) {
      for (size_t l = 0; l < lanes.size(); ++l) {
        Measured& m = measured[i * lanes.size() + l];
        Operators* ops = lanes[l].ops.get();
        if (round < 0) {
          m.calls = CallsPerSample(cases[i], ops, sample_s);
        } else {
          m.seconds.push_back(SecondsOf(cases[i], ops, m.calls) / m.calls);
        }
      }
    }
  }
  std::vector<BenchRow> rows;
  for (size_t i = 0; i < measured.size(); ++i) {
    rows.push_back(RowOf(cases[i / lanes.size()], lanes[i % lanes.size()], measured[i].seconds));
  }
  return rows;
}

class BenchKernelsCommand final : public Command {
 public:
  CLI::App* Register(CLI::App* app) override {
    CLI::App* c = app->get_subcommand("bench")->add_subcommand(
        "kernels", "Every operator over the shapes of a model");
    flags_.Register(c);
    c->add_option("--rows", rows_, "Numbers of rows")
        ->delimiter(',')
        ->check(CLI::Range(1, 1 << 16))
        ->capture_default_str();
    c->add_option("--only", only_, "Operands to measure, for example wq_b,moe; default: all")
        ->delimiter(',');
    c->add_option("--sample-ms", sample_ms_, "Calls of a sample last about this long")
        ->check(Positive())
        ->capture_default_str();
    c->footer(
        "MODEL needs no weights: config.json is enough; operands are random and walk through "
        "memory\nlarger than the caches.\n"
        "Example:\n"
        "  deepinfer bench kernels MODEL --only wq_b,moe --rows 1,4,64 --thread-counts 1");
    return c;
  }

  int Run(const FlagOrigins&) override {
    const Status status = Bench();
    return status.ok() ? kExitOk : ReportFailure(status);
  }

 private:
  Status Bench() const {
    DI_ASSIGN_OR_RETURN(const std::filesystem::path dir, flags_.model.ModelDir());
    DI_ASSIGN_OR_RETURN(const BundleOptions options, flags_.model.Bundle());
    DI_ASSIGN_OR_RETURN(ModelConfig config, ModelConfig::Load(dir));
    KernelShapes shapes{std::move(config),
                        ArithmeticOf(options.model.numerics, options.model.prod_deviations), rows_};
    std::sort(shapes.rows.begin(), shapes.rows.end());
    DI_ASSIGN_OR_RETURN(const std::vector<KernelSuiteMaker> suites, ChosenSuites(shapes));

    BenchReport report{"kernels", dir.string(), ReadEnvironment(IsaLevelName(options.isa)), {}};
    std::vector<Lane> lanes;
    for (int threads : flags_.ThreadCounts()) {
      Lane& lane = lanes.emplace_back();
      lane.pool = std::make_unique<ThreadPool>(threads);
      DI_ASSIGN_OR_RETURN(lane.ops, MakeCpuOperators(options.isa, lane.pool.get()));
      lane.ceilings = BestOf(MeasureCeilings(options.isa, kCeilingRounds, lane.pool.get()));
    }
    {
      const ProgressLine progress(static_cast<int64_t>(suites.size()));
      for (size_t i = 0; i < suites.size(); ++i) {
        progress.Show(static_cast<int64_t>(i), suites[i].name);
        const std::unique_ptr<KernelSuite> suite = suites[i].make();
        for (BenchRow& row : MeasureSuite(suite.get(), lanes, flags_.rounds, sample_ms_ * 1e-3)) {
          report.rows.push_back(std::move(row));
        }
      }
    }
    return flags_.Publish(std::move(report));
  }

  // invalid_request for a name of --only that no suite has.
  Result<std::vector<KernelSuiteMaker>> ChosenSuites(const KernelShapes& shapes) const {
    std::vector<KernelSuiteMaker> suites;
    for (auto make : {LinearSuites, AttentionSuites, CacheSuites, RowSuites}) {
      for (KernelSuiteMaker& suite : make(shapes)) suites.push_back(std::move(suite));
    }
    std::string known;
    for (const KernelSuiteMaker& s : suites) known += (known.empty() ? "" : ", ") + s.name;
    for (const std::string& name : only_) {
      const bool is_known = std::any_of(suites.begin(), suites.end(),
                                        [&](const auto& suite) { return suite.name == name; });
      if (!is_known) return InvalidRequest("--only " + name + " is none of: " + known);
    }
    std::erase_if(suites, [&](const KernelSuiteMaker& s) {
      return !only_.empty() && std::find(only_.begin(), only_.end(), s.name) == only_.end();
    });
    return suites;
  }

  BenchFlags flags_;
  std::vector<int64_t> rows_ = {1, 2, 4, 8, 16, 64, 256, 512};
  std::vector<std::string> only_;
  double sample_ms_ = 5;
};

}  // namespace

std::unique_ptr<Command> MakeBenchKernelsCommand() {
  return std::make_unique<BenchKernelsCommand>();
}

}  // namespace deepinfer
