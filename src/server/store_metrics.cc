#include "server/store_metrics.h"

#include <algorithm>
#include <mutex>
#include <string_view>
#include <utility>

#include "kvcache/store_context.h"
#include "server/number_table.h"

namespace deepinfer {
namespace {

using Stats = StoreStatistics;
using Row = NumberRow<Stats>;

template <auto kMember>
double Bytes(const Stats& s) {
  return static_cast<double>(s.*kMember) * static_cast<double>(s.record_bytes);
}

template <auto kPart, auto kWhole>
double Share(const Stats& s) {
  const auto whole = static_cast<double>(s.*kWhole);
  return whole > 0 ? static_cast<double>(s.*kPart) / whole : 0.0;
}

// New blocks and copies over new blocks.
double WriteAmplification(const Stats& s) {
  const auto written = static_cast<double>(s.written_blocks);
  return written > 0 ? (written + static_cast<double>(s.copied_blocks)) / written : 0.0;
}

// 1 in exactly one of the three series.
double IsOn(const Stats& s) { return s.tier_state == "on"; }
double IsDegraded(const Stats& s) { return s.tier_state.starts_with("degraded"); }
double IsOff(const Stats& s) { return s.tier_state.starts_with("off"); }

constexpr char kTierHelp[] = "1 for the state the tier is in.";
constexpr char kDiskHelp[] = "Disk space of segments by class.";

constexpr Row kGauges[] = {
    {"kv_index_entries", "Blocks in the persistent cache.", Count<&Stats::blocks, Stats>},
    {"kv_index_bytes", "Memory of its index.", Count<&Stats::index_bytes, Stats>},
    {"kv_disk_bytes", kDiskHelp, CountAt<&Stats::disk_bytes_by_class, 0, Stats>, "class", "batch"},
    {"kv_disk_bytes", kDiskHelp, CountAt<&Stats::disk_bytes_by_class, 1, Stats>, "class", "agent"},
    {"kv_disk_bytes", kDiskHelp, CountAt<&Stats::disk_bytes_by_class, 2, Stats>, "class", "chat"},
    {"kv_disk_bytes", kDiskHelp, CountAt<&Stats::disk_bytes_by_class, 3, Stats>, "class", "pinned"},
    {"kv_tenants_over_quota", "Tenants that hold more than their quota.",
     Count<&Stats::tenants_over_quota, Stats>},
    {"kv_write_queue_bytes", "Blocks that wait to be written.",
     Count<&Stats::write_queue_bytes, Stats>},
    {"kv_reads_in_flight", "Reads submitted and not done.", Count<&Stats::reads_in_flight, Stats>},
    {"kv_recovery_seconds", "From the start until all stored blocks were known; 0 until then.",
     Count<&Stats::recovery_seconds, Stats>},
    {"kv_write_amplification", "Records written per new block.", WriteAmplification},
    {"kv_dedup_ratio", "Share of offered blocks that were stored already.",
     Share<&Stats::duplicate_blocks, &Stats::offered_blocks>},
    {"kv_tier_state", kTierHelp, IsOn, "state", "on"},
    {"kv_tier_state", kTierHelp, IsDegraded, "state", "degraded"},
    {"kv_tier_state", kTierHelp, IsOff, "state", "off"},
};

constexpr char kDropHelp[] = "Offered blocks that are not stored, by reason.";
constexpr char kQuotaHelp[] = "Blocks removed because their tenant was over its quota, by class.";
constexpr char kBreachHelp[] = "Blocks removed before their time, by class.";

constexpr Row kCounters[] = {
    {"kv_load_ops_total", "Blocks read from disk.", Count<&Stats::loaded_blocks, Stats>},
    {"kv_load_bytes_total", "Bytes of blocks read from disk.", Bytes<&Stats::loaded_blocks>},
    {"kv_store_ops_total", "Blocks written to disk.", Count<&Stats::written_blocks, Stats>},
    {"kv_store_bytes_total", "Bytes of blocks written to disk.", Bytes<&Stats::written_blocks>},
    {"kv_copied_blocks_total", "Blocks copied to newer segments.",
     Count<&Stats::copied_blocks, Stats>},
    {"kv_dropped_writes_total", kDropHelp, CountAt<&Stats::dropped_by_reason, 0, Stats>, "reason",
     "queue_full"},
    {"kv_dropped_writes_total", kDropHelp, CountAt<&Stats::dropped_by_reason, 1, Stats>, "reason",
     "tenant_quota"},
    {"kv_dropped_writes_total", kDropHelp, CountAt<&Stats::dropped_by_reason, 2, Stats>, "reason",
     "class_quota"},
    {"kv_dropped_writes_total", kDropHelp, CountAt<&Stats::dropped_by_reason, 3, Stats>, "reason",
     "key_destroyed"},
    {"kv_dropped_writes_total", kDropHelp, CountAt<&Stats::dropped_by_reason, 4, Stats>, "reason",
     "error"},
    {"kv_dropped_writes_total", kDropHelp, CountAt<&Stats::dropped_by_reason, 5, Stats>, "reason",
     "no_space"},
    {"kv_dropped_writes_total", kDropHelp, Count<&Stats::spared_writes, Stats>, "reason",
     "write_budget"},
    {"kv_write_errors_total", "Writes that failed.", Count<&Stats::write_errors, Stats>},
    {"kv_read_errors_total", "Reads that failed.", Count<&Stats::read_errors, Stats>},
    {"kv_corrupt_records_total", "Records that failed a check.",
     Count<&Stats::corrupt_records, Stats>},
    {"kv_repaired_segments_total", "Segments whose first page was made again.",
     Count<&Stats::repaired_segments, Stats>},
    {"kv_damaged_log_entries_total", "Entries of index logs that were passed over.",
     Count<&Stats::damaged_log_entries, Stats>},
    {"kv_quota_evictions_total", kQuotaHelp, CountAt<&Stats::quota_evictions, 0, Stats>, "class",
     "batch"},
    {"kv_quota_evictions_total", kQuotaHelp, CountAt<&Stats::quota_evictions, 1, Stats>, "class",
     "agent"},
    {"kv_quota_evictions_total", kQuotaHelp, CountAt<&Stats::quota_evictions, 2, Stats>, "class",
     "chat"},
    {"kv_quarantined_segments_total", "Segments no longer read.",
     Count<&Stats::quarantined_segments, Stats>},
    {"kv_foreign_segments_total", "Segments of another version or layout.",
     Count<&Stats::foreign_segments, Stats>},
    {"kv_late_blocks_total", "Blocks not there at the deadline of their load.",
     Count<&Stats::late_blocks, Stats>},
    {"kv_expired_blocks_total", "Blocks whose time was over.",
     Count<&Stats::expired_blocks, Stats>},
    {"kv_erased_blocks_total", "Blocks erased on request.", Count<&Stats::erased_blocks, Stats>},
    {"kv_removed_segments_total", "Segments removed.", Count<&Stats::removed_segments, Stats>},
    {"kv_clock_jumps_total", "Jumps of the calendar clock.", Count<&Stats::clock_jumps, Stats>},
    {"kv_retention_breaches_total", kBreachHelp, CountAt<&Stats::retention_breaches, 0, Stats>,
     "class", "batch"},
    {"kv_retention_breaches_total", kBreachHelp, CountAt<&Stats::retention_breaches, 1, Stats>,
     "class", "agent"},
    {"kv_retention_breaches_total", kBreachHelp, CountAt<&Stats::retention_breaches, 2, Stats>,
     "class", "chat"},
    {"kv_retention_breaches_total", kBreachHelp, CountAt<&Stats::retention_breaches, 3, Stats>,
     "class", "pinned"},
};

std::vector<double> CommitBounds() {
  std::vector<double> bounds;
  for (const int64_t us : CommitTimes::kBoundsUs) bounds.push_back(static_cast<double>(us) * 1e-6);
  return bounds;
}

// One gauge per value of a label, for values that come and go.
class LabelledGauges {
 public:
  LabelledGauges(Families<prometheus::Gauge> families, std::string engine, std::string label)
      : families_(std::move(families)), engine_(std::move(engine)), label_(std::move(label)) {}

  template <typename Number>
  void Show(const std::map<std::string, Number>& now) {
    for (auto it = series_.begin(); it != series_.end();) {
      if (now.contains(it->first)) {
        ++it;
      } else {
        it->second.Remove();
        it = series_.erase(it);
      }
    }
    for (const auto& [value, number] : now) {
      auto it = series_.find(value);
      if (it == series_.end()) {
        const MetricLabels labels{{"engine", engine_}, {label_, value}};
        it = series_.emplace(value, families_.Get(labels)).first;
      }
      it->second.Set(static_cast<double>(number));
    }
  }

 private:
  Families<prometheus::Gauge> families_;
  std::string engine_;
  std::string label_;
  std::map<std::string, Series<prometheus::Gauge>> series_;
};

// Everything of one store.
class StoreSeries {
 public:
  StoreSeries(prometheus::Registry* registry, const MetricLabels& labels, MetricsCompat compat,
              const std::string& engine)
      : numbers_(kGauges, kCounters, registry, labels, compat, engine),
        tenants_(
            {*registry, "kv_tenant_bytes", "Bytes of the largest tenants, by tag.", labels, compat},
            engine, "tenant"),
        peers_({*registry, "kv_peer_lag_seconds", "Since the log of a peer was read to its end.",
                labels, compat},
               engine, "node"),
        commits_(Families<prometheus::Histogram>(*registry, "kv_store_seconds",
                                                 "Duration of a commit to disk.", labels, compat)
                     .Get(MetricLabels{{"engine", engine}}, CommitBounds())),
        shown_counts_(CommitTimes::kBoundsUs.size() + 1, 0.0) {}

  void Show(const Stats& now) {
    numbers_.Show(now);
    tenants_.Show(now.bytes_by_tenant);
    peers_.Show(now.peer_lag_seconds);
    if (now.commits_by_seconds.size() != shown_counts_.size()) return;  // no store
    std::vector<double> added;
    for (size_t i = 0; i < shown_counts_.size(); ++i) {
      added.push_back(std::max(0.0, now.commits_by_seconds[i] - shown_counts_[i]));
      shown_counts_[i] += added.back();
    }
    const double seconds = std::max(0.0, now.commit_seconds - shown_seconds_);
    commits_.ObserveMany(added, seconds);
    shown_seconds_ += seconds;
  }

 private:
  NumberTable<Stats> numbers_;
  LabelledGauges tenants_;
  LabelledGauges peers_;
  Series<prometheus::Histogram> commits_;
  std::vector<double> shown_counts_;
  double shown_seconds_ = 0;
};

}  // namespace

struct StoreMetrics::Impl {
  prometheus::Registry* registry;
  MetricLabels labels;
  MetricsCompat compat;
  std::mutex mutex;
  std::vector<StoreSeries> stores;  // under mutex, by engine
};

StoreMetrics::StoreMetrics(prometheus::Registry* registry,
                           const std::map<std::string, std::string>& labels, MetricsCompat compat)
    : impl_(new Impl{registry, labels, compat, {}, {}}) {}

StoreMetrics::~StoreMetrics() = default;

void StoreMetrics::Update(const std::vector<StoreStatistics>& stores) {
  const std::lock_guard lock(impl_->mutex);
  for (size_t i = 0; i < stores.size(); ++i) {
    if (i == impl_->stores.size()) {
      impl_->stores.emplace_back(impl_->registry, impl_->labels, impl_->compat, std::to_string(i));
    }
    impl_->stores[i].Show(stores[i]);
  }
}

}  // namespace deepinfer
