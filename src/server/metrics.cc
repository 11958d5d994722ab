#include "server/metrics.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "server/engine_metrics.h"
#include "server/gateway_metrics.h"
#include "server/metric_families.h"
#include "server/number_table.h"
#include "server/store_metrics.h"

namespace deepinfer {
namespace {

using prometheus::Counter;
using prometheus::Histogram;
using Labels = MetricLabels;
using Buckets = Histogram::BucketBoundaries;

constexpr size_t kMaxFieldLabels = 256;    // api.md §1
constexpr double kMaxContext = 1'048'576;  // of the released model

const Buckets& TtftBuckets() {
  static const Buckets buckets{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                               1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
  return buckets;
}

// Steps of one token: from a kernel-bound small model to a crowded machine.
const Buckets& TokenTimeBuckets() {
  static const Buckets buckets{.001, .002, .005, .01, .02, .03, .04, .05, .06, .08,
                               .1,   .15,  .2,   .3,  .5,  .75, 1,   2.5, 5,   10};
  return buckets;
}

const Buckets& BytesBuckets() {
  static const Buckets buckets{256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 33554432};
  return buckets;
}

// 1, 2, 5, 10, ... up to the first step at or above `limit`.
Buckets OneTwoFive(double limit) {
  Buckets buckets;
  for (double decade = 1; buckets.empty() || buckets.back() < limit; decade *= 10) {
    for (const double step : {1.0, 2.0, 5.0}) {
      if (buckets.empty() || buckets.back() < limit) buckets.push_back(step * decade);
    }
  }
  return buckets;
}

double Seconds(int64_t us) { return static_cast<double>(us) * 1e-6; }

std::string_view OutcomeOf(const RequestFacts& facts) {
  if (facts.cancelled || facts.outcome.status == 499) return "cancelled";
  return facts.error_code.empty() ? "ok" : "error";
}

constexpr const char kRevenueHelp[] = "Money that requests earn under the price book, US dollars.";

constexpr const char kCostHelp[] = "Money that requests cost under the cost book, US dollars.";

constexpr NumberRow<AccountTotals> kAccountCounters[] = {
    {"revenue_usd_total", kRevenueHelp, CountAt<&AccountTotals::earned_usd, 0, AccountTotals>,
     "class", "hit"},
    {"revenue_usd_total", kRevenueHelp, CountAt<&AccountTotals::earned_usd, 1, AccountTotals>,
     "class", "miss"},
    {"revenue_usd_total", kRevenueHelp, CountAt<&AccountTotals::earned_usd, 2, AccountTotals>,
     "class", "output"},
    {"revenue_usd_total", kRevenueHelp, CountAt<&AccountTotals::earned_usd, 3, AccountTotals>,
     "class", "cache_write"},
    {"cost_usd_total", kCostHelp, CountAt<&AccountTotals::spent_usd, 0, AccountTotals>, "class",
     "compute"},
    {"cost_usd_total", kCostHelp, CountAt<&AccountTotals::spent_usd, 1, AccountTotals>, "class",
     "storage"},
    {"cost_usd_total", kCostHelp, CountAt<&AccountTotals::spent_usd, 2, AccountTotals>, "class",
     "network"},
    {"cost_usd_total", kCostHelp, CountAt<&AccountTotals::spent_usd, 3, AccountTotals>, "class",
     "operations"},
    {"ledger_dropped_total", "Ledger lines that could not be written.",
     Count<&AccountTotals::ledger_dropped, AccountTotals>},
    {"traces_exported_total", "Requests whose spans were handed over.",
     Count<&AccountTotals::traces_exported, AccountTotals>},
    {"traces_dropped_total", "Requests whose spans were lost.",
     Count<&AccountTotals::traces_dropped, AccountTotals>},
};

// Methods outside the common ones share a label value.
std::string MethodLabel(const std::string& method) {
  for (const char* known : {"GET", "POST", "HEAD", "OPTIONS", "DELETE", "PUT", "PATCH"}) {
    if (method == known) return method;
  }
  return "other";
}

}  // namespace

struct ServerMetrics::Impl {
  using Counters = Families<Counter>;
  using Histograms = Families<Histogram>;

  Impl(const std::string& model_name, MetricsCompat compat_in)
      : compat(compat_in), labels{{"model_name", model_name}, {"role", "all"}, {"engine", "0"}} {}

  Counters MakeCounters(std::string_view name, const std::string& help) {
    return Counters(registry, name, help, labels, compat);
  }
  Series<Counter> MakeCounter(std::string_view name, const std::string& help) {
    return MakeCounters(name, help).Get({});
  }
  Series<Histogram> MakeHistogram(std::string_view name, const std::string& help,
                                  const Buckets& buckets) {
    return Histograms(registry, name, help, labels, compat).Get({}, buckets);
  }

  Labels EngineLabels() const {
    Labels without = labels;
    without.erase("engine");
    return without;
  }

  MetricsCompat compat;
  Labels labels;
  const Buckets token_buckets = OneTwoFive(kMaxContext);
  prometheus::Registry registry;

  EngineMetrics engines{&registry, EngineLabels(), compat};
  StoreMetrics stores{&registry, EngineLabels(), compat};

  Series<Counter> prompt_tokens = MakeCounter("prompt_tokens_total", "Prompt tokens.");
  Series<Counter> generation_tokens =
      MakeCounter("generation_tokens_total", "Generated tokens, end tokens included.");
  Series<Counter> cache_queries =
      MakeCounter("prefix_cache_queries_total", "Prompt tokens looked up in the cache.");
  Series<Counter> cache_hits =
      MakeCounter("prefix_cache_hits_total", "Prompt tokens found in the cache.");
  Series<Counter> store_queries =
      MakeCounter("external_prefix_cache_queries_total",
                  "Prompt tokens that were not in memory, looked up in the persistent cache.");
  Series<Counter> store_hits = MakeCounter("external_prefix_cache_hits_total",
                                           "Prompt tokens found in the persistent cache.");
  Counters by_source =
      MakeCounters("prompt_tokens_by_source_total", "Prompt tokens by where they came from.");
  Counters tokens = MakeCounters("tokens_total", "Tokens by class of account.");
  Counters success = MakeCounters("request_success_total", "Finished choices by reason.");
  Counters requests = MakeCounters("requests_total", "Generation requests by outcome.");
  Counters errors = MakeCounters("errors_total", "Error answers by code.");
  Counters parser_events =
      MakeCounters("parser_events_total", "Malformed output met by the output parser.");
  Counters unknown_fields =
      MakeCounters("unknown_request_fields_total", "Request fields nothing reads.");
  Counters cancelled_tokens =
      MakeCounters("cancelled_tokens_total", "Tokens of requests whose client left.");
  Counters replayed_turns =
      MakeCounters("exact_replay_turns_total", "Turns with tool calls that clients sent back.");
  Series<Counter> validator_gap =
      MakeCounter("validator_gap_total", "Requests the engine refused after validation.");
  Series<Counter> nan_logits =
      MakeCounter("nan_logits_total", "Log-probabilities that were not a number.");

  Series<Histogram> ttft =
      MakeHistogram("time_to_first_token_seconds", "From request to first token.", TtftBuckets());
  Series<Histogram> inter_token = MakeHistogram("inter_token_latency_seconds",
                                                "Between neighbouring tokens.", TokenTimeBuckets());
  Series<Histogram> per_token =
      MakeHistogram("time_per_output_token_seconds",
                    "Mean time of a token after the first, per request.", TokenTimeBuckets());
  Series<Histogram> e2e =
      MakeHistogram("e2e_request_latency_seconds", "From request to last token.", TtftBuckets());
  Series<Histogram> queue =
      MakeHistogram("request_queue_time_seconds", "Waiting for a place.", TtftBuckets());
  Histograms queue_stages{registry, "queue_seconds",
                          "From request to first step, by stage: prepare, engine.", labels, compat};
  Series<Histogram> prefill =
      MakeHistogram("request_prefill_time_seconds", "Computing the prompt.", TtftBuckets());
  Series<Histogram> decode =
      MakeHistogram("request_decode_time_seconds", "Generating tokens.", TtftBuckets());
  Series<Histogram> inference =
      MakeHistogram("request_inference_time_seconds", "Prefill and decode.", TtftBuckets());
  Series<Histogram> request_prompt =
      MakeHistogram("request_prompt_tokens", "Prompt tokens of a request.", token_buckets);
  Series<Histogram> request_generation =
      MakeHistogram("request_generation_tokens", "Generated tokens of a request.", token_buckets);
  Series<Histogram> params_n =
      MakeHistogram("request_params_n", "Choices asked for.", OneTwoFive(128));
  Series<Histogram> params_max_tokens =
      MakeHistogram("request_params_max_tokens", "Token limit of a request.", token_buckets);

  Counters http_requests = MakeCounters("http_requests_total", "HTTP requests.");
  Histograms http_duration{registry, "http_request_duration_seconds",
                           "From complete header to last byte.", labels, compat};
  Histograms http_request_size{registry, "http_request_size_bytes", "Request bodies.", labels,
                               compat};
  Histograms http_response_size{registry, "http_response_size_bytes", "Response bodies.", labels,
                                compat};

  Series<Histogram> loop_delay =
      MakeHistogram("http_loop_delay_seconds", "Wait of ready work for a network thread.",
                    {.00002, .00005, .0001, .0002, .0005, .001, .002, .005, .01, .05, .1, 1});

  std::mutex account_mutex;
  NumberTable<AccountTotals> account{{}, kAccountCounters, &registry, EngineLabels(), compat, "0"};
  GatewayMetrics gateway{&registry, EngineLabels(), compat};

  std::mutex fields_mutex;
  std::set<std::string> field_labels;  // under fields_mutex
};

ServerMetrics::ServerMetrics(const std::string& model_name, MetricsCompat compat)
    : impl_(std::make_unique<Impl>(model_name, compat)) {}

ServerMetrics::~ServerMetrics() = default;

void ServerMetrics::OnRequest(const RequestFacts& facts) {
  impl_->http_requests
      .Get({{"handler", facts.route},
            {"method", MethodLabel(facts.method)},
            {"status", std::to_string(facts.outcome.status)}})
      .Increment();
  const Labels handler{{"handler", facts.route}};
  impl_->http_duration.Get(handler, TtftBuckets())
      .Observe(std::chrono::duration<double>(facts.outcome.duration).count());
  impl_->http_request_size.Get(handler, BytesBuckets())
      .Observe(static_cast<double>(facts.request_bytes));
  impl_->http_response_size.Get(handler, BytesBuckets())
      .Observe(static_cast<double>(facts.outcome.response_bytes));
  if (!facts.error_code.empty()) OnError(facts.error_code);
  // Refused before it began; a generation was counted when it ended.
  if (facts.is_accounted && !facts.generated) {
    impl_->requests.Get({{"outcome", std::string(OutcomeOf(facts))}}).Increment();
  }
}

void ServerMetrics::OnGeneration(const RequestFacts& facts) {
  Impl& m = *impl_;
  const auto count = [](int64_t value) { return static_cast<double>(value); };
  m.requests.Get({{"outcome", std::string(OutcomeOf(facts))}}).Increment();
  m.prompt_tokens.Increment(count(facts.prompt_tokens));
  m.generation_tokens.Increment(count(facts.completion_tokens));
  m.cache_queries.Increment(count(facts.prompt_tokens));
  m.cache_hits.Increment(count(facts.cached_tokens));
  const int64_t from_memory = facts.cached_tokens - facts.disk_tokens;
  m.store_queries.Increment(count(facts.prompt_tokens - from_memory));
  m.store_hits.Increment(count(facts.disk_tokens));
  m.by_source.Get({{"source", "local_cache_hit"}}).Increment(count(from_memory));
  m.by_source.Get({{"source", "external_kv_transfer"}}).Increment(count(facts.disk_tokens));
  m.by_source.Get({{"source", "local_compute"}}).Increment(count(facts.computed_tokens));
  m.tokens.Get({{"class", "cached"}}).Increment(count(facts.cached_tokens));
  m.tokens.Get({{"class", "computed"}}).Increment(count(facts.computed_tokens));
  m.tokens.Get({{"class", "generated"}}).Increment(count(facts.completion_tokens));
  m.tokens.Get({{"class", "replayed"}}).Increment(count(facts.replayed_tokens));
  if (facts.cancelled) {
    m.cancelled_tokens.Get({{"phase", "prefill"}}).Increment(count(facts.computed_tokens));
    m.cancelled_tokens.Get({{"phase", "decode"}})
        .Increment(count(facts.completion_tokens + facts.wasted_tokens));
  }
  m.params_n.Observe(facts.num_choices);
  m.params_max_tokens.Observe(count(facts.max_tokens));
  m.request_prompt.Observe(count(facts.prompt_tokens));
  m.request_generation.Observe(count(facts.completion_tokens));
  if (facts.ttft_us < 0) return;
  m.ttft.Observe(Seconds(facts.ttft_us));
  m.e2e.Observe(Seconds(facts.e2e_us));
  m.queue.Observe(Seconds(facts.queue_us));
  const auto prepared = std::chrono::duration<double>(facts.admitted - facts.received).count();
  m.queue_stages.Get({{"stage", "prepare"}}, TtftBuckets()).Observe(prepared);
  m.queue_stages.Get({{"stage", "engine"}}, TtftBuckets()).Observe(Seconds(facts.queue_us));
  m.prefill.Observe(Seconds(facts.prefill_us));
  m.decode.Observe(Seconds(facts.decode_us));
  m.inference.Observe(Seconds(facts.prefill_us + facts.decode_us));
  if (facts.completion_tokens > 1) {
    m.per_token.Observe(Seconds(facts.e2e_us - facts.ttft_us) / count(facts.completion_tokens - 1));
  }
}

void ServerMetrics::OnWastedTokens(int64_t count) {
  impl_->tokens.Get({{"class", "wasted"}}).Increment(static_cast<double>(count));
}

void ServerMetrics::OnTokens(double seconds, int64_t num_tokens) {
  const double each = seconds / static_cast<double>(std::max<int64_t>(num_tokens, 1));
  for (int64_t i = 0; i < num_tokens; ++i) impl_->inter_token.Observe(each);
}

void ServerMetrics::OnFinish(std::string_view finish_reason) {
  impl_->success.Get({{"finished_reason", std::string(finish_reason)}}).Increment();
}

void ServerMetrics::OnError(std::string_view code) {
  impl_->errors.Get({{"code", std::string(code)}}).Increment();
}

void ServerMetrics::OnParserEvents(const MalformedCounts& counts) {
  for (size_t i = 0; i < counts.count.size(); ++i) {
    if (counts.count[i] == 0) continue;
    const std::string kind(MalformedKindName(static_cast<MalformedKind>(i)));
    impl_->parser_events.Get({{"kind", kind}}).Increment(counts.count[i]);
  }
}

void ServerMetrics::OnNanLogprobs(int64_t count) {
  if (count > 0) impl_->nan_logits.Increment(static_cast<double>(count));
}

void ServerMetrics::OnValidatorGap() { impl_->validator_gap.Increment(); }

void ServerMetrics::OnReplayedTurns(int32_t num_used, int32_t num_changed) {
  if (num_used > 0) impl_->replayed_turns.Get({{"result", "used"}}).Increment(num_used);
  if (num_changed > 0) impl_->replayed_turns.Get({{"result", "changed"}}).Increment(num_changed);
}

void ServerMetrics::OnLoopDelay(std::chrono::nanoseconds delay) {
  impl_->loop_delay.Observe(std::chrono::duration<double>(delay).count());
}

void ServerMetrics::OnUnknownFields(const std::vector<std::string>& fields) {
  for (std::string field : fields) {
    {
      std::lock_guard lock(impl_->fields_mutex);
      if (field.size() > 64) field = "other";
      if (!impl_->field_labels.contains(field)) {
        if (impl_->field_labels.size() + 1 < kMaxFieldLabels) {
          impl_->field_labels.insert(field);
        } else {
          field = "other";
        }
      }
    }
    impl_->unknown_fields.Get({{"field", field}}).Increment();
  }
}

std::string ServerMetrics::Serialize(const std::vector<EngineStatistics>& engines,
                                     const std::vector<StoreStatistics>& stores,
                                     const AccountTotals& account, const GatewayCounters& gateway) {
  impl_->engines.Update(engines);
  impl_->stores.Update(stores);
  {
    const std::lock_guard lock(impl_->account_mutex);
    impl_->account.Show(account);
  }
  impl_->gateway.Update(gateway);
  return prometheus::TextSerializer().Serialize(impl_->registry.Collect());
}

}  // namespace deepinfer
