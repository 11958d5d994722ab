// deepinfer bench: the parent of the benchmarks, and the one that measures the machine alone.

#include <fmt/core.h>

#include <CLI/CLI.hpp>

#include "cli/bench_ceilings.h"
#include "cli/bench_flags.h"
#include "cli/commands.h"

namespace deepinfer {
namespace {

class BenchCommand final : public Command {
 public:
  CLI::App* Register(CLI::App* app) override {
    CLI::App* bench = app->add_subcommand("bench", "Measure speed against the machine's ceilings");
    bench->require_subcommand(1);
    return bench;
  }
  int Run(const FlagOrigins&) override { return kExitUsage; }
};

class BenchCeilingsCommand final : public Command {
 public:
  CLI::App* Register(CLI::App* app) override {
    CLI::App* c = app->get_subcommand("bench")->add_subcommand(
        "ceilings", "Read bandwidth and multiply-add peaks, for each number of threads");
    flags_.RegisterWithoutModel(c);
    c->footer(
        "Example:\n"
        "  chrt -f 1 deepinfer bench ceilings --thread-counts 1,2 --json ceilings.json");
    return c;
  }

  int Run(const FlagOrigins&) override {
    const Status status = Bench();
    return status.ok() ? kExitOk : ReportFailure(status);
  }

 private:
  Status Bench() const {
    DI_ASSIGN_OR_RETURN(const IsaLevel level, flags_.model.Isa());
    BenchReport report{"ceilings", "", ReadEnvironment(IsaLevelName(level)), {}};
    for (int threads : flags_.ThreadCounts()) {
      ThreadPool pool(threads);
      CeilingSamples samples = MeasureCeilings(level, flags_.rounds, &pool);
      const auto add = [&](const char* name, const char* unit, std::vector<double> values) {
        if (values.empty()) return;
        report.rows.push_back(
            {fmt::format("{} threads {}", name, threads), unit, std::move(values), {}});
      };
      add("memory read", "GB/s", std::move(samples.read_gb_per_s));
      add("fp32 multiply-add", "GFLOP/s", std::move(samples.fp32_gflop_per_s));
      add("bf16 pairs", "GFLOP/s", std::move(samples.bf16_gflop_per_s));
      add("int8 products", "GOP/s", std::move(samples.int8_gop_per_s));
    }
    return flags_.Publish(std::move(report));
  }

  BenchFlags flags_;
};

}  // namespace

std::unique_ptr<Command> MakeBenchCommand() { return std::make_unique<BenchCommand>(); }
std::unique_ptr<Command> MakeBenchCeilingsCommand() {
  return std::make_unique<BenchCeilingsCommand>();
}

}  // namespace deepinfer
