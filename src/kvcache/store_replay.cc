#include "kvcache/store_replay.h"

#include <algorithm>
#include <limits>
#include <memory>

#include "kvcache/kv_store.h"
#include "kvcache/ram_file_system.h"

namespace deepinfer {
namespace {

constexpr int64_t kUsPerMs = 1000;
constexpr int64_t kMsPerHour = int64_t{3600} * 1000;
// Records of a segment of the released model (kv_format.md §9).
constexpr int64_t kReleasedRecords = 2339;
// As many as the default space of a server has.
constexpr int64_t kLeastSegments = 40;
// A time to live in hours of the store's calendar: buckets are one of them wide.
constexpr int64_t kTtlHours = 24;
// The janitor of a server looks every ten seconds.
constexpr int64_t kRoundMs = 10'000;

// Monotonic and calendar time in one, from the begin of 2026.
class TraceClock final : public Clock, public WallClock {
 public:
  int64_t NowUs() const override { return now_us_; }
  int64_t UnixNs() const override {
    return int64_t{1'767'225'600} * 1'000'000'000 + now_us_ * 1000;
  }
  void Set(int64_t now_us) { now_us_ = std::max(now_us_, now_us); }

 private:
  int64_t now_us_ = 0;
};

// Records of one page, a segment of this many.
KvBlockLayout SmallestLayout(int64_t segment_records) {
  KvBlockLayout layout;
  layout.format_id = kFirstTestFormat;
  layout.block_tokens = 1;
  layout.sections = {{0, 1, 60, 4}};
  const auto footer_bytes = (segment_records + 1) * static_cast<int64_t>(sizeof(IndexEntry));
  layout.segment_pages =
      static_cast<uint32_t>(1 + segment_records + (footer_bytes + kPageBytes - 1) / kPageBytes);
  return layout;
}

KvStoreOptions StoreOptions(const StoreReplayOptions& options) {
  int64_t records = options.segment_records;
  if (records == 0) {
    records =
        options.capacity_blocks == 0
            ? kReleasedRecords
            : std::clamp<int64_t>(options.capacity_blocks / kLeastSegments, 1, kReleasedRecords);
  }
  KvStoreOptions store;
  store.dir = "/kv";
  store.namespace_id = Sha256("a trace");
  store.layout = SmallestLayout(records);
  store.io_threads = 0;
  store.direct_io = false;
  store.background_threads = false;
  store.write_queue_bytes = std::numeric_limits<int64_t>::max();
  store.space_bytes =
      options.capacity_blocks == 0
          ? int64_t{1} << 60
          : std::max<int64_t>(1, options.capacity_blocks * store.layout.segment_bytes() / records);
  if (options.ttl_ms > 0) {
    store.retention[static_cast<size_t>(RetentionClass::kChat)] = {kTtlHours, 1};
  }
  return store;
}

class StoreReplay {
 public:
  StoreReplay(const StoreReplayOptions& options, int64_t id_tokens)
      : id_tokens_(id_tokens),
        round_ms_(options.ttl_ms > 0 ? std::max<int64_t>(1, options.ttl_ms / kTtlHours) : kRoundMs),
        us_per_ms_(options.ttl_ms > 0 ? static_cast<double>(kTtlHours * kMsPerHour * kUsPerMs) /
                                            static_cast<double>(options.ttl_ms)
                                      : static_cast<double>(kUsPerMs)),
        options_(StoreOptions(options)) {}

  Status Open() {
    DI_ASSIGN_OR_RETURN(store_, KvStore::Open(options_, files_.get(), &clock_, &clock_));
    payload_.resize(static_cast<size_t>(options_.layout.payload_bytes()));
    return OkStatus();
  }

  void Serve(const TraceRequest& request) {
    PassTo(request.time_ms);
    std::vector<BlockKey> keys;
    for (const uint64_t id : request.ids) keys.push_back(TraceKey(id));
    const size_t hit = store_->Lookup(keys, std::numeric_limits<uint16_t>::max()).blocks.size();
    store_->Touch(std::span(keys).first(hit), RetentionClass::kChat);
    for (size_t i = hit; i < keys.size(); ++i) {
      PublishRequest publish;
      publish.key = keys[i];
      if (i > 0) publish.parent = keys[i - 1];
      publish.block_number = static_cast<uint32_t>(i);
      (void)store_->Publish(publish, payload_);
    }
    // Blocks of a server are found in memory until their group is committed.
    store_->Flush(false);
    if (store_->TakeWantsRoom()) RunJanitor();
    ++totals_.trace.requests;
    totals_.trace.input_tokens += request.input_tokens;
    totals_.trace.hit_tokens +=
        std::min(static_cast<int64_t>(hit) * id_tokens_, request.input_tokens);
    totals_.most_segments = std::max(totals_.most_segments, store_->Stats().segments);
  }

  StoreReplayTotals Totals(int64_t unique_blocks) {
    const StoreCounters& counters = store_->counters();
    for (const auto& breaches : counters.retention_breaches) totals_.evicted_blocks += breaches;
    totals_.trace.unique_blocks = unique_blocks;
    totals_.trace.reclaimed_blocks = totals_.evicted_blocks + counters.expired_blocks;
    totals_.copied_blocks = counters.copied_blocks;
    totals_.removed_segments = counters.removed_segments;
    return totals_;
  }

 private:
  // With the rounds of writer and janitor that a server would have had meanwhile.
  void PassTo(int64_t time_ms) {
    for (; next_round_ms_ <= time_ms; next_round_ms_ += round_ms_) {
      SetTime(next_round_ms_);
      store_->RunWriter();
      RunJanitor();
    }
    SetTime(time_ms);
  }
  void RunJanitor() {
    (void)store_->RunJanitor();
    store_->Flush(false);  // what it copied
  }
  void SetTime(int64_t time_ms) {
    clock_.Set(static_cast<int64_t>(static_cast<double>(time_ms) * us_per_ms_));
  }

  const int64_t id_tokens_;
  const int64_t round_ms_;
  const double us_per_ms_;
  const KvStoreOptions options_;
  TraceClock clock_;
  std::unique_ptr<FileSystem> files_ = MakeRamFileSystem();
  std::unique_ptr<KvStore> store_;
  std::vector<std::byte> payload_;
  int64_t next_round_ms_ = 0;
  StoreReplayTotals totals_;
};

}  // namespace

Result<StoreReplayTotals> ReplayTraceInStore(std::span<const TraceRequest> requests,
                                             int64_t id_tokens, const StoreReplayOptions& options) {
  StoreReplay replay(options, id_tokens);
  DI_RETURN_IF_ERROR(replay.Open());
  for (const TraceRequest& request : requests) replay.Serve(request);
  return replay.Totals(CountUniqueIds(requests));
}

}  // namespace deepinfer
