#include "engine/store_watch.h"

#include "base/log.h"
#include "kvcache/kv_store.h"

namespace deepinfer {

namespace {

constexpr int64_t kLookUs = 1'000'000;
constexpr int64_t kHourUs = int64_t{3600} * 1'000'000;
constexpr int64_t kDayUs = 24 * kHourUs;

}  // namespace

bool WriteAlarm::Observe(int64_t now_us, int64_t written_blocks, int64_t read_blocks,
                         int64_t block_bytes) {
  if (samples_.empty() || now_us - samples_.back().time_us >= kHourUs) {
    samples_.push_back({now_us, written_blocks, read_blocks});
  }
  while (samples_.size() > 1 && now_us - samples_[1].time_us >= kDayUs) samples_.pop_front();
  const auto written = static_cast<double>(written_blocks - samples_.front().written_blocks);
  const auto read = static_cast<double>(read_blocks - samples_.front().read_blocks);
  return written * static_cast<double>(block_bytes) > kLeastWrittenBytes &&
         read < kReadShare * written;
}

void StoreWatch::Look(const KvStore* store, int64_t now_us, EngineStatistics* statistics) {
  if (store == nullptr || now_us - looked_us_ < kLookUs) return;
  looked_us_ = now_us;
  const StoreCounters& counters = store->counters();
  const int64_t block_bytes = store->context().options.layout.record_bytes();
  const bool was_on = statistics->write_without_read;
  statistics->write_without_read =
      alarm_.Observe(now_us, counters.written_blocks, counters.loaded_blocks, block_bytes);
  if (statistics->write_without_read && !was_on) {
    Log(LogLevel::kWarning, "kv.write_without_read",
        {{"written_blocks", counters.written_blocks.load()},
         {"read_blocks", counters.loaded_blocks.load()}});
  }
  std::string state = store->TierState();
  if (state == tier_state_) return;
  Log(state == "on" ? LogLevel::kInfo : LogLevel::kWarning, "kv.tier_state",
      {{"tier", CacheTierName(CacheTier::kDisk)}, {"state", state}});
  tier_state_ = std::move(state);
}

}  // namespace deepinfer
