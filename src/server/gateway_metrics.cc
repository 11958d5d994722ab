#include "server/gateway_metrics.h"

#include <mutex>

#include "server/histogram_table.h"
#include "server/number_table.h"

namespace deepinfer {
namespace {

double OldestWaitSeconds(const GatewayCounters& s) {
  return static_cast<double>(s.oldest_wait_us) * 1e-6;
}

constexpr char kWaitingHelp[] = "Requests that wait at the gateway, by class.";
constexpr char kBarredHelp[] = "Workers, and pairs of them, that get nothing because they failed.";

constexpr char kBusiestHelp[] =
    "Time in steps of the busiest worker of a role over the mean, last minute; 0: all were idle.";

constexpr NumberRow<GatewayCounters> kGauges[] = {
    {"gateway_requests_waiting", kWaitingHelp,
     CountAt<&GatewayCounters::waiting, 0, GatewayCounters>, "class", "interactive"},
    {"gateway_requests_waiting", kWaitingHelp,
     CountAt<&GatewayCounters::waiting, 1, GatewayCounters>, "class", "agent"},
    {"gateway_requests_waiting", kWaitingHelp,
     CountAt<&GatewayCounters::waiting, 2, GatewayCounters>, "class", "batch"},
    {"gateway_oldest_wait_seconds", "Age of the request that waits there for longest.",
     OldestWaitSeconds},
    {"gateway_workers_ready", "Workers that it reaches and whose steps come back.",
     Count<&GatewayCounters::ready_workers, GatewayCounters>},
    {"leases_held", "States on their way between workers: room and blocks that are held for them.",
     Count<&GatewayCounters::leases_held, GatewayCounters>},
    {"gateway_orphans", "Runs of lost gateways that this one may take over.",
     Count<&GatewayCounters::orphans, GatewayCounters>},
    {"gateway_barred", kBarredHelp, Count<&GatewayCounters::barred_workers, GatewayCounters>,
     "kind", "worker"},
    {"gateway_barred", kBarredHelp, Count<&GatewayCounters::barred_pairs, GatewayCounters>, "kind",
     "pair"},
    {"gateway_busiest_worker_ratio", kBusiestHelp,
     CountAt<&GatewayCounters::busiest, 0, GatewayCounters>, "of", "all"},
    {"gateway_busiest_worker_ratio", kBusiestHelp,
     CountAt<&GatewayCounters::busiest, 1, GatewayCounters>, "of", "prefill"},
    {"gateway_busiest_worker_ratio", kBusiestHelp,
     CountAt<&GatewayCounters::busiest, 2, GatewayCounters>, "of", "decode"},
};

double ProbesAnswered(const GatewayCounters& s) {
  return static_cast<double>(s.probes.asked - s.probes.unanswered);
}
double ProbesUnanswered(const GatewayCounters& s) {
  return static_cast<double>(s.probes.unanswered);
}
double TokensNotStored(const GatewayCounters& s) {
  return static_cast<double>(s.probes.prompt_tokens - s.probes.own_tokens - s.probes.peer_tokens);
}
double OwnTokens(const GatewayCounters& s) { return static_cast<double>(s.probes.own_tokens); }
double PeerTokens(const GatewayCounters& s) { return static_cast<double>(s.probes.peer_tokens); }

constexpr char kProbesHelp[] = "Questions to workers what the persistent cache holds of a prompt.";
constexpr char kProbedHelp[] = "Tokens of these prompts, by who had stored them.";

constexpr char kRefusedHelp[] = "Requests refused with 429, by reason.";

constexpr NumberRow<GatewayCounters> kCounters[] = {
    {"gateway_redispatched_total", "Attempts of requests after the first.",
     Count<&GatewayCounters::redispatched, GatewayCounters>},
    {"gateway_migrated_total", "Of these, those that continued an answer.",
     Count<&GatewayCounters::migrated, GatewayCounters>},
    {"gateway_hand_offs_total", "Attempts split between a prefill and a decode worker.",
     Count<&GatewayCounters::hand_offs, GatewayCounters>},
    {"gateway_adopted_total", "Runs taken over from a gateway that was lost.",
     Count<&GatewayCounters::adopted, GatewayCounters>},
    {"gateway_queued_total", "Requests that waited at the gateway.",
     Count<&GatewayCounters::queued, GatewayCounters>},
    {"gateway_probes_total", kProbesHelp, ProbesAnswered, "result", "answered"},
    {"gateway_probes_total", kProbesHelp, ProbesUnanswered, "result", "late"},
    {"gateway_probed_tokens_total", kProbedHelp, OwnTokens, "stored", "own"},
    {"gateway_probed_tokens_total", kProbedHelp, PeerTokens, "stored", "peer"},
    {"gateway_probed_tokens_total", kProbedHelp, TokensNotStored, "stored", "no"},
    {"gateway_refused_total", kRefusedHelp, Count<&GatewayCounters::shed, GatewayCounters>,
     "reason", "promise"},
    {"gateway_refused_total", kRefusedHelp, Count<&GatewayCounters::over_budget, GatewayCounters>,
     "reason", "budget"},
    {"gateway_barred_total", "Times that a worker or a pair was barred.",
     Count<&GatewayCounters::openings, GatewayCounters>},
};

const StatHistogram& TtftErrors(const GatewayCounters& s) { return s.forecast_errors.ttft; }
const StatHistogram& TpotErrors(const GatewayCounters& s) { return s.forecast_errors.tpot; }

constexpr HistogramRow<GatewayCounters> kHistograms[] = {
    {"gateway_ttft_forecast_error",
     "Share by which the time to the first token was off that routing expected.", TtftErrors},
    {"gateway_tpot_forecast_error",
     "Share by which the time of later tokens was off that routing expected.", TpotErrors},
};

}  // namespace

struct GatewayMetrics::Impl {
  std::mutex mutex;
  NumberTable<GatewayCounters> numbers;  // under mutex, as all below
  HistogramTable<GatewayCounters> histograms;
};

GatewayMetrics::GatewayMetrics(prometheus::Registry* registry,
                               const std::map<std::string, std::string>& labels,
                               MetricsCompat compat)
    : impl_(new Impl{{},
                     {kGauges, kCounters, registry, labels, compat, "0"},
                     {kHistograms, registry, labels, compat, "0"}}) {}

GatewayMetrics::~GatewayMetrics() = default;

void GatewayMetrics::Update(const GatewayCounters& now) {
  const std::lock_guard lock(impl_->mutex);
  impl_->numbers.Show(now);
  impl_->histograms.Show(now);
}

}  // namespace deepinfer
