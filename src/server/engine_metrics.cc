#include "server/engine_metrics.h"

#include <mutex>
#include <set>
#include <string_view>

#include "server/histogram_table.h"
#include "server/number_table.h"

namespace deepinfer {
namespace {

using prometheus::Gauge;
using Stats = EngineStatistics;
using Row = NumberRow<Stats>;

double Share(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

double KvUsage(const Stats& s) { return Share(s.kv_tokens, s.kv_capacity_tokens); }

template <auto kMember>
double Kilo(const Stats& s) {
  return static_cast<double>(s.*kMember) * 1e3;
}

double ExpertLoad(const Stats& s) {
  return s.expert_load_milli > 0 ? static_cast<double>(s.expert_load_milli) * 1e-3 : kNotKnown;
}

double FlopsUtilization(const Stats& s) {
  return s.peak_flops > 0 ? Share(s.flops_per_second, s.peak_flops) : kNotKnown;
}

// There is no tier in the memory of a host beside its device.
double NoHostTier(const Stats& /*s*/) { return 0; }

template <auto kMember>
double Seconds(const Stats& s) {
  return static_cast<double>(s.*kMember) * 1e-6;
}

double GrammarCompileSeconds(const Stats& s) {
  return static_cast<double>(s.grammars.compile_us) * 1e-6;
}

template <auto kMember>
double OfGrammars(const Stats& s) {
  return static_cast<double>(s.grammars.*kMember);
}

constexpr const char kQueuedHelp[] = "Requests waiting for a place, without those being loaded.";

constexpr Row kGauges[] = {
    {"grammars_waiting", "Grammars whose compilation has not begun.",
     OfGrammars<&GrammarPoolStats::num_waiting>},
    {"grammar_cache_bytes", "Bytes of compiled grammars that are kept.",
     OfGrammars<&GrammarPoolStats::cached_bytes>},
    {"num_requests_running", "Requests being computed.", Count<&Stats::running, Stats>},
    {"num_requests_waiting", "Requests waiting for a place.", Count<&Stats::waiting, Stats>},
    {"num_requests_queued", kQueuedHelp, CountAt<&Stats::queued_by_class, 0, Stats>, "class",
     "interactive"},
    {"num_requests_queued", kQueuedHelp, CountAt<&Stats::queued_by_class, 1, Stats>, "class",
     "agent"},
    {"num_requests_queued", kQueuedHelp, CountAt<&Stats::queued_by_class, 2, Stats>, "class",
     "batch"},
    {"num_requests_pending", "Requests waiting for a grammar, an image or a hand-off.",
     Count<&Stats::pending, Stats>},
    {"num_requests_parked", "Requests set aside for others.", Count<&Stats::parked, Stats>},
    {"num_requests_loading", "Requests whose blocks come from the persistent cache.",
     Count<&Stats::loading, Stats>},
    {"kv_write_without_read", "1: much is written to the persistent cache, next to nothing read.",
     Count<&Stats::write_without_read, Stats>},
    {"waiting_prompt_tokens", "Prompt rows still to be computed.",
     Count<&Stats::waiting_prompt_tokens, Stats>},
    {"kv_cache_usage_perc", "Used share of the KV cache, 0 to 1.", KvUsage},
    {"gpu_cache_usage_perc", "Older name of kv_cache_usage_perc.", KvUsage},
    {"cpu_kv_cache_usage_perc", "Used share of a KV tier in host memory: there is none.",
     NoHostTier},
    {"blocks_in_use", "KV blocks of live sequences.", Count<&Stats::blocks_used, Stats>},
    {"blocks_cached", "Idle KV blocks kept for later prompts.",
     Count<&Stats::blocks_cached, Stats>},
    {"state_slots_in_use", "State slots of live sequences.", Count<&Stats::slots_used, Stats>},
    {"undelivered_events", "Events of live requests that their readers have not taken yet.",
     Count<&Stats::undelivered_events, Stats>},
    {"step_max_context", "Longest context of the last step, tokens.",
     Count<&Stats::step_max_context, Stats>},
    {"expert_load_imbalance",
     "Rows of the busiest expert over those of the mean one, mean over layers.", ExpertLoad},
    {"model_flops_per_second", "Operations a second of recent forward passes.",
     Count<&Stats::flops_per_second, Stats>},
    {"model_flops_utilization", "The same as a share of the configured peak, 0 to 1.",
     FlopsUtilization},
};

constexpr const char kLoadedHelp[] = "Prompt tokens in cached blocks by tier, replayed ones too.";
constexpr const char kMissHelp[] = "Prompt tokens in whole blocks that were not cached.";
constexpr const char kReplayHelp[] = "Rows run again to rebuild window state, by how.";
constexpr const char kDraftPositionHelp[] = "Accepted drafts by position.";
constexpr const char kVerifiedPositionHelp[] = "Verified drafts by position.";

constexpr Row kCounters[] = {
    {"engine_steps_total", "Steps.", Count<&Stats::steps, Stats>},
    {"grammar_compilations_total", "Grammars compiled.",
     OfGrammars<&GrammarPoolStats::num_compiled>, "result", "ok"},
    {"grammar_compilations_total", "Grammars compiled.", OfGrammars<&GrammarPoolStats::num_failed>,
     "result", "refused"},
    {"grammar_cache_hits_total", "Grammars found compiled.",
     OfGrammars<&GrammarPoolStats::num_cache_hits>},
    {"grammar_cache_evictions_total", "Compiled grammars dropped for others.",
     OfGrammars<&GrammarPoolStats::num_evicted>},
    {"grammar_compile_seconds_total", "Time of grammar compilations.", GrammarCompileSeconds},
    {"grammar_masked_tokens_total", "Tokens sampled under a grammar.",
     Count<&Stats::masked_tokens, Stats>},
    {"grammar_forced_tokens_total", "Tokens appended because a grammar allowed no other.",
     Count<&Stats::forced_tokens, Stats>},
    {"grammar_mask_seconds_total", "Time of masks and forced tokens.", Seconds<&Stats::grammar_us>},
    {"rows_total", "Rows computed.", Count<&Stats::prefill_rows, Stats>, "kind", "prefill"},
    {"rows_total", "Rows computed.", Count<&Stats::decode_rows, Stats>, "kind", "decode"},
    {"attended_tokens_total", "Sum over rows of the positions up to theirs.",
     Count<&Stats::attended_tokens, Stats>},
    {"model_flops_total", "Operations of the rows computed, two a multiply-add.",
     Kilo<&Stats::kiloflops>},
    {"attention_flops_total", "Of these, attention cores and index scans.",
     Kilo<&Stats::attention_kiloflops>},
    {"cancels_total", "Requests cancelled while they lived.", Count<&Stats::cancels, Stats>},
    {"invariant_breaches_total", "Contradictions that the engine found in its own state.",
     Count<&Stats::invariant_breaches, Stats>},
    {"cached_tokens_total", "Cached prompt tokens by tier.",
     CountAt<&Stats::cached_by_tier, 0, Stats>, "tier", "device"},
    {"cached_tokens_total", "Cached prompt tokens by tier.",
     CountAt<&Stats::cached_by_tier, 1, Stats>, "tier", "dram"},
    {"cached_tokens_total", "Cached prompt tokens by tier.",
     CountAt<&Stats::cached_by_tier, 2, Stats>, "tier", "disk"},
    {"cached_tokens_total", "Cached prompt tokens by tier.",
     CountAt<&Stats::cached_by_tier, 3, Stats>, "tier", "remote"},
    {"kv_loaded_tokens_total", kLoadedHelp, CountAt<&Stats::hit_by_tier, 0, Stats>, "tier",
     "device"},
    {"kv_loaded_tokens_total", kLoadedHelp, CountAt<&Stats::hit_by_tier, 1, Stats>, "tier", "dram"},
    {"kv_loaded_tokens_total", kLoadedHelp, CountAt<&Stats::hit_by_tier, 2, Stats>, "tier", "disk"},
    {"kv_loaded_tokens_total", kLoadedHelp, CountAt<&Stats::hit_by_tier, 3, Stats>, "tier",
     "remote"},
    {"kv_miss_tokens_total", kMissHelp, CountAt<&Stats::miss_tokens, 1, Stats>, "reason", "absent"},
    {"kv_miss_tokens_total", kMissHelp, CountAt<&Stats::miss_tokens, 2, Stats>, "reason",
     "replay_gen"},
    {"kv_miss_tokens_total", kMissHelp, CountAt<&Stats::miss_tokens, 3, Stats>, "reason",
     "too_short"},
    {"kv_miss_tokens_total", kMissHelp, CountAt<&Stats::miss_tokens, 4, Stats>, "reason", "slower"},
    {"kv_miss_tokens_total", kMissHelp, CountAt<&Stats::miss_tokens, 5, Stats>, "reason",
     "deadline"},
    {"kv_miss_tokens_total", kMissHelp, CountAt<&Stats::miss_tokens, 6, Stats>, "reason",
     "breaker"},
    {"kv_miss_tokens_total", kMissHelp, CountAt<&Stats::miss_tokens, 7, Stats>, "reason",
     "io_error"},
    {"kv_miss_tokens_total", kMissHelp, CountAt<&Stats::miss_tokens, 8, Stats>, "reason",
     "corrupt"},
    {"kv_miss_tokens_total", kMissHelp, CountAt<&Stats::miss_tokens, 9, Stats>, "reason",
     "expired"},
    {"kv_miss_tokens_total", kMissHelp, CountAt<&Stats::miss_tokens, 10, Stats>, "reason",
     "evicted_early"},
    {"swa_replay_tokens_total", kReplayHelp, CountAt<&Stats::replayed_by, 0, Stats>, "mode",
     "snapshot"},
    {"swa_replay_tokens_total", kReplayHelp, CountAt<&Stats::replayed_by, 1, Stats>, "mode",
     "bounded"},
    {"swa_replay_tokens_total", kReplayHelp, CountAt<&Stats::replayed_by, 2, Stats>, "mode",
     "exact"},
    {"kv_loads_total", "Loads from the persistent cache.", Count<&Stats::store_loads, Stats>},
    {"kv_partial_loads_total", "Loads that did not bring all they wanted.",
     Count<&Stats::store_loads_partial, Stats>},
    {"num_preemptions_total", "Requests set aside while they ran.", Count<&Stats::parks, Stats>},
    {"resumes_total", "Set-aside requests continued.", Count<&Stats::resumes_from_image, Stats>,
     "kind", "image"},
    {"resumes_total", "Set-aside requests continued.", Count<&Stats::resumes_rebuilt, Stats>,
     "kind", "rebuilt"},
    {"blocks_evicted_total", "Cached KV blocks dropped for others.",
     Count<&Stats::blocks_evicted, Stats>},
    {"spec_decode_num_drafts_total", "Verifications of drafts.", Count<&Stats::drafts, Stats>},
    {"spec_decode_num_draft_tokens_total", "Draft tokens verified.",
     Count<&Stats::draft_tokens, Stats>},
    {"spec_decode_num_accepted_tokens_total", "Draft tokens kept.",
     Count<&Stats::draft_accepted, Stats>},
    {"spec_decode_num_accepted_tokens_per_pos_total", kDraftPositionHelp,
     CountAt<&Stats::draft_accepted_by_position, 0, Stats>, "position", "0"},
    {"spec_decode_num_accepted_tokens_per_pos_total", kDraftPositionHelp,
     CountAt<&Stats::draft_accepted_by_position, 1, Stats>, "position", "1"},
    {"spec_decode_num_accepted_tokens_per_pos_total", kDraftPositionHelp,
     CountAt<&Stats::draft_accepted_by_position, 2, Stats>, "position", "2"},
    {"spec_decode_num_accepted_tokens_per_pos_total", kDraftPositionHelp,
     CountAt<&Stats::draft_accepted_by_position, 3, Stats>, "position", "3"},
    {"spec_decode_num_accepted_tokens_per_pos_total", kDraftPositionHelp,
     CountAt<&Stats::draft_accepted_by_position, 4, Stats>, "position", "4"},
    {"spec_decode_num_draft_tokens_per_pos_total", kVerifiedPositionHelp,
     CountAt<&Stats::draft_verified_by_position, 0, Stats>, "position", "0"},
    {"spec_decode_num_draft_tokens_per_pos_total", kVerifiedPositionHelp,
     CountAt<&Stats::draft_verified_by_position, 1, Stats>, "position", "1"},
    {"spec_decode_num_draft_tokens_per_pos_total", kVerifiedPositionHelp,
     CountAt<&Stats::draft_verified_by_position, 2, Stats>, "position", "2"},
    {"spec_decode_num_draft_tokens_per_pos_total", kVerifiedPositionHelp,
     CountAt<&Stats::draft_verified_by_position, 3, Stats>, "position", "3"},
    {"spec_decode_num_draft_tokens_per_pos_total", kVerifiedPositionHelp,
     CountAt<&Stats::draft_verified_by_position, 4, Stats>, "position", "4"},
    {"device_seconds_total", "Time of steps from begin to end, which requests have shares of.",
     Seconds<&Stats::step_us>},
    {"engine_seconds_total", "Time of the step thread.", Seconds<&Stats::host_us>, "part", "host"},
    {"engine_seconds_total", "Time of the step thread.", Seconds<&Stats::model_us>, "part",
     "model"},
    {"engine_seconds_total", "Time of the step thread.", Seconds<&Stats::draft_us>, "part",
     "draft"},
};

template <auto kMember>
const StatHistogram& Of(const Stats& s) {
  return s.*kMember;
}

template <StepKind kKind>
const StatHistogram& StepsOf(const Stats& s) {
  return s.step_seconds[static_cast<size_t>(kKind)];
}

constexpr HistogramRow<Stats> kHistograms[] = {
    {"step_seconds", "Duration of a step.", StepsOf<StepKind::kPrefill>, "kind", "prefill"},
    {"step_seconds", "Duration of a step.", StepsOf<StepKind::kDecode>, "kind", "decode"},
    {"step_seconds", "Duration of a step.", StepsOf<StepKind::kMixed>, "kind", "mixed"},
    {"iteration_tokens_total", "Rows of a step.", Of<&Stats::rows_per_step>},
    {"step_prediction_error", "Share by which the predicted time of a step was off.",
     Of<&Stats::step_prediction_error>},
    {"draft_accept_len", "Draft tokens kept per verification.", Of<&Stats::draft_accept_length>},
    {"draft_confidence_error", "Distance of confidence and acceptance.",
     Of<&Stats::draft_confidence_error>},
    {"kv_load_seconds", "Duration of a load from the persistent cache.",
     Of<&Stats::store_load_seconds>},
    {"kv_replay_gen", "Bounded replays behind the blocks of a hit.", Of<&Stats::replay_gen>},
    {"kv_block_lifetime_seconds", "From the first write of a block to its eviction.",
     Of<&Stats::block_lifetime_seconds>},
    {"kv_block_idle_before_evict_seconds", "Idle time of a block at its eviction.",
     Of<&Stats::block_idle_seconds>},
    {"kv_block_reuse_gap_seconds", "Between two uses of a block.", Of<&Stats::block_reuse_seconds>},
};

}  // namespace

struct EngineMetrics::Impl {
  // The series of one engine, and the state they show.
  struct Engine {
    NumberTable<Stats> numbers;
    HistogramTable<Stats> histograms;
    Series<Gauge> config;
    uint64_t incarnation = 0;
  };

  Engine Register(const std::string& name, const EngineStatistics& now) {
    Engine engine{{kGauges, kCounters, registry, labels, compat, name},
                  {kHistograms, registry, labels, compat, name},
                  {},
                  now.incarnation};
    engine.config = Families<Gauge>(*registry, "cache_config_info",
                                    "Size of the KV cache, as labels.", labels, compat)
                        .Get({{"engine", name},
                              {"num_gpu_blocks", std::to_string(now.blocks_total)},
                              {"num_tokens", std::to_string(now.kv_capacity_tokens)}});
    engine.config.Set(1);
    return engine;
  }

  static void Remove(Engine* engine) {
    engine->numbers.Remove();
    engine->histograms.Remove();
    engine->config.Remove();
  }

  void Show(Engine* engine, const EngineStatistics& now) {
    if (now.incarnation != engine->incarnation) {
      engine->numbers.Restart();
      engine->histograms.Restart();
      engine->incarnation = now.incarnation;
    }
    engine->numbers.Show(now);
    engine->histograms.Show(now);
  }

  prometheus::Registry* registry;
  MetricLabels labels;
  MetricsCompat compat;
  std::mutex mutex;
  std::map<std::string, Engine> engines;  // under mutex, by name
};

EngineMetrics::EngineMetrics(prometheus::Registry* registry,
                             const std::map<std::string, std::string>& labels, MetricsCompat compat)
    : impl_(new Impl{registry, labels, compat, {}, {}}) {}

EngineMetrics::~EngineMetrics() = default;

void EngineMetrics::Update(const std::vector<EngineStatistics>& engines) {
  const std::lock_guard lock(impl_->mutex);
  std::set<std::string> present;
  for (const EngineStatistics& now : engines) {
    const std::string name = now.name.empty() ? std::to_string(present.size()) : now.name;
    present.insert(name);
    auto it = impl_->engines.find(name);
    if (it == impl_->engines.end()) {
      it = impl_->engines.emplace(name, impl_->Register(name, now)).first;
    }
    impl_->Show(&it->second, now);
  }
  // One that left for good would show its last state for ever.
  for (auto it = impl_->engines.begin(); it != impl_->engines.end();) {
    if (present.contains(it->first)) {
      ++it;
    } else {
      Impl::Remove(&it->second);
      it = impl_->engines.erase(it);
    }
  }
}

}  // namespace deepinfer
