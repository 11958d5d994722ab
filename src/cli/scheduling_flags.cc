#include "cli/scheduling_flags.h"

#include <CLI/CLI.hpp>
#include <cmath>

namespace deepinfer {

void SchedulingFlags::Register(CLI::App* c, EngineOptions* options) {
  EngineOptions& o = *options;
  c->add_option("--tpot-target-ms", tpot_target_ms_,
                "Time that a step with running answers aims at: more gives prompts larger chunks")
      ->check(CLI::Range(0.1, 60'000.0))
      ->capture_default_str();
  c->add_option("--ttft-target-ms", ttft_target_ms_,
                "First tokens of interactive, agent and batch requests that are aimed at, as "
                "2000,10000,120000: of a class, the one with the least time left goes first; 0 = "
                "in order of arrival")
      ->delimiter(',')
      ->expected(static_cast<int>(kRequestClasses.size()))
      ->check(CLI::Range(0.0, 1e9))
      ->capture_default_str();
  c->add_option("--min-prefill-rows", o.min_prefill_rows,
                "Prompt rows that run every --prefill-every steps however slow answers are")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  c->add_option("--prefill-every", o.prefill_every, "Steps between them at most")
      ->check(CLI::Range(1, 1'000))
      ->capture_default_str();
  c->add_option("--prefill-share-max", o.prefill_share_max,
                "Share of the time of a step with running answers that prompts get at most")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  c->add_option("--max-skips", o.max_skips, "Waiting requests without room that a step passes over")
      ->check(CLI::Range(0, 10'000))
      ->capture_default_str();
  c->add_option("--peak-gflops", peak_gflops_,
                "What the machine does at most (`deepinfer bench ceilings`): the metrics then tell "
                "the share of it that the model uses")
      ->check(CLI::Range(0.0, 1e9));
  c->add_option("--resume", resume_,
                "A parked request whose state was dropped: compute enough for equal bits, or less")
      ->check(CLI::IsMember({"exact", "bounded"}))
      ->capture_default_str();
}

void SchedulingFlags::Apply(EngineOptions* options) const {
  options->tpot_target_us = std::llround(1e3 * tpot_target_ms_);
  for (size_t i = 0; i < ttft_target_ms_.size(); ++i) {
    options->ttft_target_us[i] = std::llround(1e3 * ttft_target_ms_[i]);
  }
  options->peak_flops = 1e9 * peak_gflops_;
  options->resume = resume_ == "bounded" ? ReplayMode::kBounded : ReplayMode::kExact;
}

}  // namespace deepinfer
