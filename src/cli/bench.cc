// deepinfer bench: prefill and decode speed of a model, beside what the machine could do at most.

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "base/philox.h"
#include "cli/bench_ceilings.h"
#include "cli/commands.h"
#include "cli/generation.h"
#include "cli/io.h"
#include "cli/model_flags.h"
#include "model/model_stats.h"

namespace deepinfer {
namespace {

constexpr uint64_t kPromptSeed = 1;

// Median of an odd or even number of samples.
double Median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return (v[(v.size() - 1) / 2] + v[v.size() / 2]) / 2;
}

struct Measurement {
  int threads = 0;
  Ceilings ceilings;
  double prefill_tokens_per_s = 0;
  double decode_tokens_per_s = 0;
};

class BenchCommand final : public Command {
 public:
  CLI::App* Register(CLI::App* app) override {
    CLI::App* sub = app->add_subcommand(
        "bench", "Measure prefill and decode speed against the machine's ceilings");
    sub->add_option("WHAT", what_, "model, or ceilings (the machine alone)")
        ->check(CLI::IsMember({"model", "ceilings"}))
        ->capture_default_str();
    flags_.Register(sub, false, kServingNumerics);
    sub->add_option("--prompt", prompt_len_, "Prompt tokens")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    sub->add_option("--gen", gen_len_, "Decoded tokens")
        ->check(CLI::Range(2, 1 << 20))
        ->capture_default_str();
    sub->add_option("--rounds", rounds_, "Repetitions; the median is shown")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    sub->add_option("--thread-counts", thread_counts_,
                    "Thread counts to measure; default: 1 and all")
        ->delimiter(',');
    sub->add_flag("--json", json_, "One JSON line per thread count");
    sub->footer("Example:\n  deepinfer bench model --prompt 512 --gen 64 --thread-counts 1,2");
    return sub;
  }

  int Run(const FlagOrigins&) override {
    const Status status = Bench();
    return status.ok() ? kExitOk : ReportFailure(status);
  }

 private:
  Status Bench() {
    std::vector<int> counts = thread_counts_;
    if (counts.empty()) counts = {1, AvailableCores()};
    counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
    std::string load = "?";
    std::getline(std::ifstream("/proc/loadavg"), load, ' ');
    fmt::print(stderr, "cpu {}, load average {}\n", IsaLevelName(DetectIsaLevel()), load);
    for (int threads : counts) {
      if (threads < 1) return InvalidRequest("--thread-counts must be at least 1");
      Measurement m;
      m.threads = threads;
      DI_ASSIGN_OR_RETURN(const BundleOptions options, flags_.Bundle());
      {
        ThreadPool pool(threads);
        m.ceilings = MeasureCeilings(options.isa, &pool);
      }
      if (what_ == "ceilings") {
        DI_RETURN_IF_ERROR(PrintCeilings(m));
        continue;
      }
      DI_RETURN_IF_ERROR(BenchModel(options, &m));
    }
    return OkStatus();
  }

  Status BenchModel(BundleOptions options, Measurement* m) {
    DI_ASSIGN_OR_RETURN(const std::filesystem::path dir, flags_.ModelDir());
    options.num_threads = m->threads;
    options.model.max_positions = prompt_len_ + gen_len_ + 1;
    EngineOptions engine;
    engine.max_model_len = options.model.max_positions;
    DI_ASSIGN_OR_RETURN(const auto local, LocalEngine::Open(dir, options, engine));
    const ModelConfig& c = local->bundle().model->config();
    if (local->engine().max_model_len() < options.model.max_positions) {
      return InvalidRequest("--prompt plus --gen exceed the model's " +
                            std::to_string(c.max_positions) + " positions");
    }
    std::vector<double> prefill, decode;
    // Round 0 warms caches and buffers and is not counted.
    for (int round = 0; round <= rounds_; ++round) {
      DI_ASSIGN_OR_RETURN(const TokenEvent last,
                          local->Run(MakeRequest(c, round), [](const TokenEvent&) {}));
      DI_RETURN_IF_ERROR(last.status);
      if (round == 0) continue;
      prefill.push_back(prompt_len_ / (static_cast<double>(last.counters.prefill_us) * 1e-6));
      decode.push_back((gen_len_ - 1) / (static_cast<double>(last.counters.decode_us) * 1e-6));
    }
    m->prefill_tokens_per_s = Median(prefill);
    m->decode_tokens_per_s = Median(decode);
    return PrintModel(*m, *local->bundle().model);
  }

  EngineRequest MakeRequest(const ModelConfig& c, int round) const {
    EngineRequest request;
    request.request_id = "bench-" + std::to_string(round);
    for (int32_t i = 0; i < prompt_len_; ++i) {
      const PhiloxBlock r = RandomBlock(kPromptSeed, static_cast<uint64_t>(i),
                                        RandomPurpose::kSample, static_cast<uint32_t>(round));
      // Ids below 3 are begin, end and pad.
      request.prompt_ids.push_back(
          3 + static_cast<int32_t>(r[0] % static_cast<uint32_t>(c.vocab_size - 3)));
    }
    request.sampling.temperature = 0.0f;
    request.sampling.max_tokens = gen_len_;
    request.sampling.ignore_eos = true;
    return request;
  }

  Status PrintCeilings(const Measurement& m) const {
    if (json_) {
      return PrintLine(
          fmt::format("{{\"threads\":{},\"read_gb_per_s\":{:.2f},\"fp32_gflop_per_s\":{:.1f},"
                      "\"bf16_gflop_per_s\":{:.1f}}}",
                      m.threads, m.ceilings.read_gb_per_s, m.ceilings.fp32_gflop_per_s,
                      m.ceilings.bf16_gflop_per_s));
    }
    return PrintLine(fmt::format(
        "threads {}: read {:.1f} GB/s, fp32 {:.0f} GFLOP/s, bf16 {:.0f} GFLOP/s", m.threads,
        m.ceilings.read_gb_per_s, m.ceilings.fp32_gflop_per_s, m.ceilings.bf16_gflop_per_s));
  }

  Status PrintModel(const Measurement& m, const Model& model) const {
    const ModelConfig& c = model.config();
    const double bytes = WeightBytesPerDecodedToken(c, model.checkpoint());
    const double decode_bound = m.ceilings.read_gb_per_s * 1e9 / bytes;
    const RowFlops f = FlopsPerRow(c, prompt_len_ / 2);
    const double tail = std::min<double>(c.decoder_keep_rows(), prompt_len_) / prompt_len_;
    const double prompt_flops = f.encoder + tail * f.decoder;
    const bool bf16 = flags_.numerics != "ref" && m.ceilings.bf16_gflop_per_s > 0;
    const double peak = bf16 ? m.ceilings.bf16_gflop_per_s : m.ceilings.fp32_gflop_per_s;
    const double prefill_bound = peak * 1e9 / prompt_flops;
    if (json_) {
      return PrintLine(fmt::format(
          "{{\"threads\":{},\"prompt\":{},\"gen\":{},\"prefill_tokens_per_s\":{:.1f},"
          "\"prefill_bound\":{:.1f},\"decode_tokens_per_s\":{:.1f},\"decode_bound\":{:.1f},"
          "\"read_gb_per_s\":{:.2f},\"peak_gflop_per_s\":{:.1f}}}",
          m.threads, prompt_len_, gen_len_, m.prefill_tokens_per_s, prefill_bound,
          m.decode_tokens_per_s, decode_bound, m.ceilings.read_gb_per_s, peak));
    }
    return PrintLine(fmt::format(
        "threads {}: prefill {} {:.1f} tok/s ({:.1f} % of the {} peak's {:.0f}), decode {} {:.1f} "
        "tok/s ({:.1f} % of the {:.1f} GB/s read bound's {:.0f})",
        m.threads, prompt_len_, m.prefill_tokens_per_s,
        100 * m.prefill_tokens_per_s / prefill_bound, bf16 ? "bf16" : "fp32", prefill_bound,
        gen_len_, m.decode_tokens_per_s, 100 * m.decode_tokens_per_s / decode_bound,
        m.ceilings.read_gb_per_s, decode_bound));
  }

  ModelFlags flags_;
  std::string what_ = "model";
  std::vector<int> thread_counts_;
  int32_t prompt_len_ = 512;
  int32_t gen_len_ = 64;
  int rounds_ = 5;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeBenchCommand() { return std::make_unique<BenchCommand>(); }

}  // namespace deepinfer
