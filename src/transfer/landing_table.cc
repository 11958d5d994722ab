#include "transfer/landing_table.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "base/crc32c.h"

namespace deepinfer {

namespace {

// Cannot be guessed: a ticket is all that a data connection shows.
uint64_t NewTicket() {
  std::random_device random;
  return (uint64_t{random()} << 32) | random();
}

// Regions of a state: the slot, KV sources, what a profile adds.
constexpr size_t kMostRegions = 16;
// A million tokens in blocks of 128 have half as many parts; each takes a node of a map.
constexpr int64_t kMostUnits = 65'536;

int64_t NumUnits(const TransferRegion& region) {
  return (region.size_bytes + region.unit_bytes - 1) / region.unit_bytes;
}

// The size of all of them together.
Result<int64_t> CheckRegions(std::span<const TransferRegion> regions, int64_t max_bytes) {
  const Status nonsense = InvalidRequest("no transfer has such regions");
  if (regions.size() > kMostRegions) return nonsense;
  int64_t size_bytes = 0, num_units = 0;
  for (const TransferRegion& region : regions) {
    if (region.unit_bytes < 1 || region.unit_bytes > kExtentBytes || region.size_bytes < 1) {
      return nonsense;
    }
    if (region.size_bytes > max_bytes - size_bytes) {
      return InvalidRequest("a transfer of more than " + std::to_string(max_bytes) + " bytes");
    }
    size_bytes += region.size_bytes;
    num_units += NumUnits(region);
  }
  if (num_units > kMostUnits) return nonsense;
  return size_bytes;
}

// Whether it holds whole units of one region.
bool IsWhole(const Extent& extent, std::span<const TransferRegion> regions) {
  int64_t begin = 0;
  for (const TransferRegion& region : regions) {
    const int64_t at = extent.offset - begin;
    if (at < region.size_bytes) {
      const int64_t end = at + extent.size_bytes;
      return at % region.unit_bytes == 0 && end <= region.size_bytes &&
             (end % region.unit_bytes == 0 || end == region.size_bytes);
    }
    begin += region.size_bytes;
  }
  return false;
}

}  // namespace

Result<LandingGrant> LandingTable::Grant(std::span<const TransferRegion> regions,
                                         bool shares_memory, bool early) {
  DI_ASSIGN_OR_RETURN(const int64_t size_bytes, CheckRegions(regions, options_.max_bytes));
  {
    const std::lock_guard lock(mutex_);
    const int64_t limit = early ? options_.max_bytes / 2 : options_.max_bytes;
    if (counters_.bytes_held + size_bytes > limit) {
      return ResourceExhausted("transfers on the way hold all landing memory");
    }
    counters_.bytes_held += size_bytes;
    ++counters_.granted;
  }
  auto landing = std::make_shared<Landing>();
  landing->regions.assign(regions.begin(), regions.end());
  landing->bytes.resize(static_cast<size_t>(size_bytes));
  LandingGrant grant;
  grant.ticket = NewTicket();
  if (shares_memory && size_bytes > 0) {
    // Without one the bytes come over a connection.
    if (Result<SharedWindow> window = SharedWindow::Create(options_.window_bytes); window.ok()) {
      landing->window = *std::move(window);
      grant.shared_window = landing->window.address();
    }
  }
  landing->lease_until_us = clock_->NowUs() + options_.lease_us;
  const std::lock_guard lock(mutex_);
  landings_.emplace(grant.ticket, std::move(landing));
  return grant;
}

LandingTable::LandingPtr LandingTable::Begin(const Extent& extent,
                                             const std::function<void()>* interrupt) {
  const std::lock_guard lock(mutex_);
  const auto it = landings_.find(extent.ticket);
  if (it == landings_.end() || it->second->revoked) return nullptr;
  Landing& landing = *it->second;
  if (extent.size_bytes < 1 || extent.size_bytes > kExtentBytes || extent.offset < 0 ||
      !IsWhole(extent, landing.regions)) {
    return nullptr;
  }
  const auto next = landing.extents.lower_bound(extent.offset);
  if (next != landing.extents.end() && next->first < extent.offset + extent.size_bytes) {
    return nullptr;
  }
  if (next != landing.extents.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second.size_bytes > extent.offset) return nullptr;
  }
  landing.extents[extent.offset] = {extent.size_bytes, extent.crc32c, false};
  ++landing.writers;
  if (interrupt != nullptr) landing.interrupts.push_back(interrupt);
  return it->second;
}

ExtentOutcome LandingTable::End(const LandingPtr& landing, const Extent& extent, bool filled,
                                uint32_t crc) {
  const std::lock_guard lock(mutex_);
  --landing->writers;
  if (landing->revoked) {
    if (landing->writers == 0) Free(extent.ticket);
    return ExtentOutcome::kRefused;
  }
  if (filled && crc == extent.crc32c) {
    landing->extents[extent.offset].whole = true;
    landing->lease_until_us = clock_->NowUs() + options_.lease_us;
    counters_.bytes_stored += extent.size_bytes;
    return ExtentOutcome::kStored;
  }
  landing->extents.erase(extent.offset);
  if (!filled) return ExtentOutcome::kRefused;
  if (landing->nacked.insert(extent.offset).second) {
    ++counters_.extents_nacked;
    return ExtentOutcome::kCorrupt;
  }
  RevokeLocked(extent.ticket);
  return ExtentOutcome::kRefused;
}

ExtentOutcome LandingTable::Store(const Extent& extent, const std::function<Status(Landing&)>& fill,
                                  const std::function<void()>* interrupt) {
  const LandingPtr landing = Begin(extent, interrupt);
  if (landing == nullptr) return ExtentOutcome::kRefused;
  if (options_.before_fill) options_.before_fill();
  const bool filled = fill(*landing).ok();
  const std::span<std::byte> to =
      std::span(landing->bytes)
          .subspan(static_cast<size_t>(extent.offset), static_cast<size_t>(extent.size_bytes));
  const uint32_t crc = filled ? Crc32c(to) : 0;
  if (interrupt != nullptr) {
    const std::lock_guard lock(mutex_);
    std::erase(landing->interrupts, interrupt);
  }
  return End(landing, extent, filled, crc);
}

ExtentOutcome LandingTable::OnShared(const Extent& extent) {
  {
    // A message that comes twice.
    const std::lock_guard lock(mutex_);
    const auto it = landings_.find(extent.ticket);
    if (it == landings_.end() || it->second->revoked) return ExtentOutcome::kRefused;
    const auto stored = it->second->extents.find(extent.offset);
    if (stored != it->second->extents.end() && stored->second.whole &&
        stored->second.size_bytes == extent.size_bytes && stored->second.crc32c == extent.crc32c) {
      return ExtentOutcome::kStored;
    }
  }
  const auto copy = [&](Landing& landing) -> Status {
    const auto at = size_t{extent.slot} * size_t{kExtentBytes};
    const auto size = static_cast<size_t>(extent.size_bytes);
    const std::span<std::byte> window = landing.window.bytes();
    if (window.size() < at + size) return InvalidRequest("no such place in the window");
    std::memcpy(landing.bytes.data() + extent.offset, window.data() + at, size);
    return OkStatus();
  };
  return Store(extent, copy, nullptr);
}

ExtentOutcome LandingTable::OnStream(const Extent& extent, const Source& source,
                                     const std::function<void()>& interrupt) {
  const auto receive = [&](Landing& landing) {
    return source(
        std::span(landing.bytes)
            .subspan(static_cast<size_t>(extent.offset), static_cast<size_t>(extent.size_bytes)));
  };
  return Store(extent, receive, &interrupt);
}

Result<std::vector<std::byte>> LandingTable::Take(uint64_t ticket, const Manifest& manifest) {
  const std::lock_guard lock(mutex_);
  const auto it = landings_.find(ticket);
  if (it == landings_.end() || it->second->revoked) {
    return NotFound("the landing of the transfer is gone");
  }
  Landing& landing = *it->second;
  int64_t end = 0;
  std::vector<uint32_t> crcs;
  for (const auto& [offset, extent] : landing.extents) {
    if (offset != end || !extent.whole) break;
    end += extent.size_bytes;
    crcs.push_back(extent.crc32c);
  }
  const auto size = static_cast<int64_t>(landing.bytes.size());
  if (end != size || manifest.size_bytes != size || crcs.size() != landing.extents.size() ||
      manifest.num_extents != static_cast<int64_t>(crcs.size()) ||
      manifest.crc_of_crcs != ManifestCrc(crcs)) {
    RevokeLocked(ticket);
    return DataCorruption("the bytes that arrived are not those of the manifest");
  }
  const LandingPtr taken = it->second;
  Free(ticket);
  return std::move(taken->bytes);
}

void LandingTable::Renew(uint64_t ticket) {
  const std::lock_guard lock(mutex_);
  const auto it = landings_.find(ticket);
  if (it != landings_.end()) it->second->lease_until_us = clock_->NowUs() + options_.lease_us;
}

void LandingTable::Revoke(uint64_t ticket) {
  const std::lock_guard lock(mutex_);
  RevokeLocked(ticket);
}

void LandingTable::RevokeLocked(uint64_t ticket) {
  const auto it = landings_.find(ticket);
  if (it == landings_.end() || it->second->revoked) return;
  it->second->revoked = true;
  for (const auto* interrupt : it->second->interrupts) (*interrupt)();
  if (it->second->writers == 0) Free(ticket);
}

void LandingTable::Free(uint64_t ticket) {
  const auto it = landings_.find(ticket);
  counters_.bytes_held -= static_cast<int64_t>(it->second->bytes.size());
  ++counters_.released;
  landings_.erase(it);
}

std::vector<uint64_t> LandingTable::Sweep() {
  const int64_t now_us = clock_->NowUs();
  std::vector<uint64_t> over;
  const std::lock_guard lock(mutex_);
  for (const auto& [ticket, landing] : landings_) {
    if (!landing->revoked && now_us >= landing->lease_until_us) over.push_back(ticket);
  }
  for (const uint64_t ticket : over) RevokeLocked(ticket);
  return over;
}

LandingCounters LandingTable::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

}  // namespace deepinfer
