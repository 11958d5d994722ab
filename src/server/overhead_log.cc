#include "server/overhead_log.h"

#include <chrono>
#include <utility>

#include "base/thread_name.h"
#include "base/utc_clock.h"
#include "server/request_id.h"

namespace deepinfer {
namespace {

constexpr int64_t kNsPerUs = 1000;
constexpr int64_t kUsPerHour = int64_t{3600} * 1'000'000;

int64_t SteadyNowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

OverheadLog::OverheadLog(OverheadScope scope, int64_t process_began_ns, OverheadSource source,
                         const CostBook* costs, LedgerWriter* writer)
    : source_(std::move(source)), costs_(costs), writer_(writer) {
  scope.process = MakeRandomHex128();
  const std::vector<EngineStatistics> engines = source_.engines();
  const int64_t now_ns = SteadyNowNs();
  const int64_t utc_offset_us = UtcNow<std::chrono::microseconds>() - now_ns / kNsPerUs;
  for (size_t i = 0; i < engines.size(); ++i) {
    const int64_t began_ns = now_ns - engines[i].accounted_us * kNsPerUs;
    devices_.emplace_back(scope, static_cast<int64_t>(i), began_ns, utc_offset_us);
    Write(devices_.back().Startup(process_began_ns));
  }
  thread_ = std::thread([this] { Loop(); });
}

OverheadLog::~OverheadLog() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stop_changed_.notify_all();
  thread_.join();
  Cut(/*is_last=*/true);
}

void OverheadLog::Loop() {
  NameThread("overhead");
  std::unique_lock lock(mutex_);
  while (true) {
    // On the hour, so that the lines of one are in the file of the next at the latest.
    const std::chrono::microseconds left(kUsPerHour -
                                         UtcNow<std::chrono::microseconds>() % kUsPerHour);
    if (stop_changed_.wait_for(lock, left, [this] { return stop_; })) return;
    Cut(/*is_last=*/false);
  }
}

void OverheadLog::Cut(bool is_last) {
  const int64_t probes_ns = source_.probes_ns ? source_.probes_ns() : 0;
  const std::vector<EngineStatistics> engines = source_.engines();
  for (size_t i = 0; i < devices_.size() && i < engines.size(); ++i) {
    const EngineStatistics& e = engines[i];
    const DeviceTime time{.accounted_ns = e.accounted_us * kNsPerUs,
                          .steps_ns = e.step_us * kNsPerUs,
                          .unclaimed_ns = e.unclaimed_ns,
                          .probes_ns = i == 0 ? probes_ns : 0};
    for (OverheadRecord& record : devices_[i].Cut(time, is_last)) Write(std::move(record));
  }
}

void OverheadLog::Write(OverheadRecord record) {
  if (costs_ != nullptr) CostOverhead(*costs_, &record);
  writer_->Append(FormatOverheadLine(record));
}

}  // namespace deepinfer
