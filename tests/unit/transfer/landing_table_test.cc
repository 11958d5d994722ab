// Ownership of landings: what peers may do to them, and that all of them become free.

#include "transfer/landing_table.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/crc32c.h"
#include "support/fake_clock.h"
#include "support/wait_until.h"

namespace deepinfer {
namespace {

constexpr int64_t kLeaseUs = 10'000'000;

std::vector<std::byte> Pattern(int64_t size) {
  std::vector<std::byte> bytes(static_cast<size_t>(size));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 31 + i / 251);
  return bytes;
}

class Landing : public ::testing::Test {
 protected:
  uint64_t Grant(int64_t size, bool shared = false) {
    const Result<LandingGrant> grant = TryGrant(size, shared);
    EXPECT_TRUE(grant.ok());
    return grant->ticket;
  }
  // One region of units of a thousand bytes.
  Result<LandingGrant> TryGrant(int64_t size, bool shared = false) {
    const TransferRegion region{size, std::min<int64_t>(size, 1000)};
    return table_.Grant({&region, 1}, shared);
  }
  Extent ExtentOf(uint64_t ticket, int64_t offset, int64_t size) const {
    return {ticket, offset, size, Crc32c(Bytes(offset, size))};
  }
  std::span<const std::byte> Bytes(int64_t offset, int64_t size) const {
    return std::span(bytes_).subspan(static_cast<size_t>(offset), static_cast<size_t>(size));
  }
  ExtentOutcome Write(const Extent& extent) {
    return table_.OnStream(
        extent,
        [&](std::span<std::byte> to) {
          const auto from = Bytes(extent.offset, extent.size_bytes);
          std::copy(from.begin(), from.end(), to.begin());
          return OkStatus();
        },
        [] {});
  }
  Manifest ManifestOf(std::initializer_list<Extent> extents) const {
    Manifest manifest;
    std::vector<uint32_t> crcs;
    for (const Extent& e : extents) {
      manifest.size_bytes += e.size_bytes;
      crcs.push_back(e.crc32c);
    }
    manifest.num_extents = static_cast<int32_t>(crcs.size());
    manifest.crc_of_crcs = ManifestCrc(crcs);
    return manifest;
  }
  void ExpectNothingHeld() const {
    const LandingCounters counters = table_.counters();
    EXPECT_EQ(counters.granted, counters.released);
    EXPECT_EQ(counters.bytes_held, 0);
  }

  const std::vector<std::byte> bytes_ = Pattern(10'000);
  FakeClock clock_{0};
  LandingTable table_{{.max_bytes = 10'000, .lease_us = kLeaseUs}, &clock_};
};

TEST_F(Landing, GivesTheBytesOnceTheyAreAllThere) {
  const uint64_t ticket = Grant(10'000);
  const Extent first = ExtentOf(ticket, 0, 6000), second = ExtentOf(ticket, 6000, 4000);
  EXPECT_EQ(Write(second), ExtentOutcome::kStored) << "any order will do";
  EXPECT_EQ(Write(first), ExtentOutcome::kStored);
  const auto taken = table_.Take(ticket, ManifestOf({first, second}));
  ASSERT_TRUE(taken.ok());
  EXPECT_EQ(*taken, bytes_);
  EXPECT_EQ(Write(first), ExtentOutcome::kRefused) << "it has another owner now";
  ExpectNothingHeld();
}

TEST_F(Landing, IsRevokedWhenTheManifestDoesNotFit) {
  const auto try_with = [&](auto change) {
    const uint64_t ticket = Grant(6000);
    const Extent extent = ExtentOf(ticket, 0, 6000);
    EXPECT_EQ(Write(extent), ExtentOutcome::kStored);
    Manifest manifest = ManifestOf({extent});
    change(&manifest);
    EXPECT_EQ(table_.Take(ticket, manifest).status().code(), StatusCode::kDataCorruption);
    ExpectNothingHeld();
  };
  try_with([](Manifest* m) { --m->size_bytes; });
  try_with([](Manifest* m) { ++m->num_extents; });
  try_with([](Manifest* m) { m->crc_of_crcs ^= 1; });
}

TEST_F(Landing, IsRevokedWhenAHoleIsLeft) {
  const uint64_t ticket = Grant(10'000);
  const Extent first = ExtentOf(ticket, 0, 5000), last = ExtentOf(ticket, 6000, 4000);
  Write(first), Write(last);
  EXPECT_EQ(table_.Take(ticket, ManifestOf({first, last})).status().code(),
            StatusCode::kDataCorruption);
  ExpectNothingHeld();
}

TEST_F(Landing, TakesABrokenExtentOnceMoreAndNotTwice) {
  const uint64_t ticket = Grant(6000);
  Extent extent = ExtentOf(ticket, 0, 6000);
  extent.crc32c ^= 0x80;
  EXPECT_EQ(Write(extent), ExtentOutcome::kCorrupt);
  const Extent right = ExtentOf(ticket, 0, 6000);
  EXPECT_EQ(Write(right), ExtentOutcome::kStored);
  EXPECT_TRUE(table_.Take(ticket, ManifestOf({right})).ok());
  const uint64_t other = Grant(6000);
  extent.ticket = other;
  EXPECT_EQ(Write(extent), ExtentOutcome::kCorrupt);
  EXPECT_EQ(Write(extent), ExtentOutcome::kRefused);
  EXPECT_EQ(table_.counters().extents_nacked, 2);
  ExpectNothingHeld();
}

TEST_F(Landing, RefusesNonsense) {
  const uint64_t ticket = Grant(6000);
  EXPECT_EQ(Write(ExtentOf(ticket + 1, 0, 1000)), ExtentOutcome::kRefused) << "no such ticket";
  EXPECT_EQ(Write(ExtentOf(ticket, 5000, 2000)), ExtentOutcome::kRefused) << "past the end";
  EXPECT_EQ(Write(ExtentOf(ticket, 6000, 1000)), ExtentOutcome::kRefused) << "past the end";
  EXPECT_EQ(Write({ticket, -1, 2, 0}), ExtentOutcome::kRefused);
  EXPECT_EQ(Write({ticket, INT64_MAX, 2, 0}), ExtentOutcome::kRefused);
  EXPECT_EQ(Write({ticket, 0, 0, 0}), ExtentOutcome::kRefused);
  EXPECT_EQ(Write(ExtentOf(ticket, 1000, 1000)), ExtentOutcome::kStored);
  EXPECT_EQ(Write(ExtentOf(ticket, 0, 2000)), ExtentOutcome::kRefused) << "overlaps";
  EXPECT_EQ(Write(ExtentOf(ticket, 1000, 2000)), ExtentOutcome::kRefused) << "overlaps";
  EXPECT_EQ(table_.OnShared(ExtentOf(ticket, 0, 1000)), ExtentOutcome::kRefused) << "no window";
  EXPECT_EQ(TryGrant(10'001).status().code(), StatusCode::kInvalidRequest);
  EXPECT_EQ(TryGrant(5000).status().code(), StatusCode::kResourceExhausted);
  table_.Revoke(ticket + 1);
  table_.Revoke(ticket), table_.Revoke(ticket);
  ExpectNothingHeld();
}

TEST_F(Landing, HalfOfTheMemoryIsForTransfersThatAreWhole) {
  const TransferRegion large{5001, 1000}, half{5000, 1000}, crumb{1, 1};
  const auto early = [&](const TransferRegion& region) {
    return table_.Grant({&region, 1}, false, true).status().code();
  };
  EXPECT_EQ(early(large), StatusCode::kResourceExhausted);
  EXPECT_EQ(early(half), StatusCode::kOk);
  EXPECT_EQ(early(crumb), StatusCode::kResourceExhausted);
  EXPECT_EQ(TryGrant(5000).status().code(), StatusCode::kOk);
  EXPECT_EQ(TryGrant(1).status().code(), StatusCode::kResourceExhausted);
}

// What it takes to keep track of the extents of a landing does not depend on its sender.
TEST_F(Landing, TakesWholeUnitsOfItsRegionsOnly) {
  const TransferRegion regions[] = {{2500, 1000}, {900, 300}};
  const auto grant = table_.Grant(regions, false);
  ASSERT_TRUE(grant.ok());
  const uint64_t ticket = grant->ticket;
  for (const auto& [offset, size] :
       {std::pair(0, 1), std::pair(0, 999), std::pair(1, 1000), std::pair(2000, 800),
        std::pair(2500, 301), std::pair(2600, 300), std::pair(3100, 600)}) {
    EXPECT_EQ(Write(ExtentOf(ticket, offset, size)), ExtentOutcome::kRefused) << offset;
  }
  EXPECT_EQ(table_.counters().bytes_stored, 0);
  for (const auto& [offset, size] :
       {std::pair(0, 2000), std::pair(2000, 500), std::pair(2500, 600), std::pair(3100, 300)}) {
    EXPECT_EQ(Write(ExtentOf(ticket, offset, size)), ExtentOutcome::kStored) << offset;
  }
  table_.Revoke(ticket);
  ExpectNothingHeld();
}

TEST_F(Landing, OfRegionsThatCannotBeIsNotGranted) {
  const auto code = [&](std::vector<TransferRegion> regions) {
    return table_.Grant(regions, false).status().code();
  };
  EXPECT_EQ(code({{1000, 0}}), StatusCode::kInvalidRequest);
  EXPECT_EQ(code({{1000, -5}}), StatusCode::kInvalidRequest);
  EXPECT_EQ(code({{1000, kExtentBytes + 1}}), StatusCode::kInvalidRequest);
  EXPECT_EQ(code({{0, 1}}), StatusCode::kInvalidRequest);
  EXPECT_EQ(code({{INT64_MAX, 1000}, {INT64_MAX, 1000}}), StatusCode::kInvalidRequest);
  EXPECT_EQ(code(std::vector<TransferRegion>(17, {10, 10})), StatusCode::kInvalidRequest);
  LandingTable large({.max_bytes = 1 << 20}, &clock_);
  const TransferRegion crumbs{100'000, 1};
  EXPECT_EQ(large.Grant({&crumbs, 1}, false).status().code(), StatusCode::kInvalidRequest);
  ExpectNothingHeld();
}

TEST_F(Landing, OfNoBytesHasAnEndToo) {
  const auto grant = table_.Grant({}, true);
  ASSERT_TRUE(grant.ok());
  EXPECT_TRUE(grant->shared_window.empty());
  const auto taken = table_.Take(grant->ticket, ManifestOf({}));
  ASSERT_TRUE(taken.ok());
  EXPECT_TRUE(taken->empty());
  ExpectNothingHeld();
}

TEST_F(Landing, IsRenewedByTheWordOfItsSender) {
  const uint64_t ticket = Grant(6000);
  clock_.Advance(kLeaseUs - 1);
  table_.Renew(ticket);
  table_.Renew(ticket + 1);
  clock_.Advance(kLeaseUs - 1);
  EXPECT_TRUE(table_.Sweep().empty());
  clock_.Advance(1);
  EXPECT_EQ(table_.Sweep(), std::vector<uint64_t>{ticket});
  table_.Renew(ticket);
  ExpectNothingHeld();
}

TEST_F(Landing, ExpiresUnlessExtentsRenewIt) {
  const uint64_t ticket = Grant(6000);
  clock_.Advance(kLeaseUs - 1);
  EXPECT_TRUE(table_.Sweep().empty());
  Write(ExtentOf(ticket, 0, 1000));
  clock_.Advance(kLeaseUs - 1);
  EXPECT_TRUE(table_.Sweep().empty());
  clock_.Advance(1);
  EXPECT_EQ(table_.Sweep(), std::vector<uint64_t>{ticket});
  EXPECT_EQ(Write(ExtentOf(ticket, 1000, 1000)), ExtentOutcome::kRefused);
  EXPECT_EQ(table_.Take(ticket, {}).status().code(), StatusCode::kNotFound);
  ExpectNothingHeld();
}

// The lease ends while a sender stands still in the middle of an extent: its memory stays until the
// writer has left, and the writer is told to.
TEST_F(Landing, IsNotFreeBeforeTheLastWriterLeft) {
  const uint64_t ticket = Grant(6000);
  std::mutex mutex;
  std::condition_variable changed;
  bool writing = false, interrupted = false;
  ExtentOutcome outcome = ExtentOutcome::kStored;
  std::thread writer([&] {
    outcome = table_.OnStream(
        ExtentOf(ticket, 0, 6000),
        [&](std::span<std::byte> to) -> Status {
          std::unique_lock lock(mutex);
          writing = true;
          changed.notify_all();
          WaitUntil(changed, lock, "the interruption", [&] { return interrupted; });
          // The memory is still there to be written, whoever waits for it, and is nobody else's.
          EXPECT_EQ(table_.counters().bytes_held, 6000);
          EXPECT_EQ(TryGrant(5000).status().code(), StatusCode::kResourceExhausted);
          std::fill(to.begin(), to.end(), std::byte{0xDD});
          return OkStatus();
        },
        [&] {
          const std::lock_guard lock(mutex);
          interrupted = true;
          changed.notify_all();
        });
  });
  {
    std::unique_lock lock(mutex);
    WaitUntil(changed, lock, "the writer", [&] { return writing; });
  }
  clock_.Advance(kLeaseUs);
  EXPECT_EQ(table_.Sweep().size(), 1u);
  writer.join();
  EXPECT_EQ(outcome, ExtentOutcome::kRefused);
  ExpectNothingHeld();
}

TEST_F(Landing, AnAnnouncementThatComesTwiceChangesNothing) {
  const Result<LandingGrant> grant = TryGrant(3000, true);
  ASSERT_TRUE(grant.ok());
  ASSERT_FALSE(grant->shared_window.empty());
  Result<SharedWindow> window =
      SharedWindow::Open(grant->shared_window, table_.options().window_bytes);
  ASSERT_TRUE(window.ok());
  std::copy(bytes_.begin(), bytes_.begin() + 3000, window->bytes().begin());
  const Extent extent = ExtentOf(grant->ticket, 0, 3000);
  EXPECT_EQ(table_.OnShared(extent), ExtentOutcome::kStored);
  window->bytes()[5] ^= std::byte{1};  // what was stored is out of reach
  EXPECT_EQ(table_.OnShared(extent), ExtentOutcome::kStored);
  const auto taken = table_.Take(grant->ticket, ManifestOf({extent}));
  ASSERT_TRUE(taken.ok());
  EXPECT_TRUE(std::equal(taken->begin(), taken->end(), bytes_.begin()));
  ExpectNothingHeld();
}

// Whatever peers do in whatever order, every landing is released once and no byte stays.
RC_GTEST_PROP(LandingWalk, LeavesNothingBehind, ()) {
  FakeClock clock(0);
  LandingTable table({.max_bytes = 4096, .lease_us = 10}, &clock);
  const auto bytes = Pattern(1024);
  std::vector<uint64_t> tickets = {1};
  const auto ops = *rc::gen::container<std::vector<std::pair<uint8_t, uint16_t>>>(
      rc::gen::pair(rc::gen::inRange<uint8_t>(0, 6), rc::gen::arbitrary<uint16_t>()));
  for (const auto& [op, any] : ops) {
    const uint16_t arg = any;  // a lambda takes no part of a pair
    const uint64_t ticket = tickets[arg % tickets.size()];
    const int64_t offset = arg % 4 * 256;
    const auto part = std::span(bytes).subspan(static_cast<size_t>(offset), 256);
    const uint32_t crc = Crc32c(part) ^ (arg % 5 == 0);
    switch (op) {
      case 0: {
        const TransferRegion region{1024, 256};
        const auto grant = table.Grant({&region, 1}, arg % 2 == 0);
        if (grant.ok()) tickets.push_back(grant->ticket);
        break;
      }
      case 1:
      case 2:
        table.OnStream(
            {ticket, offset, 256, crc},
            [&](std::span<std::byte> to) {
              std::copy(part.begin(), part.end(), to.begin());
              return arg % 7 == 0 ? Unavailable("torn") : OkStatus();
            },
            [] {});
        break;
      case 3:
        table.Revoke(ticket);
        break;
      case 4: {
        std::vector<uint32_t> crcs;
        for (size_t i = 0; i < 4; ++i)
          crcs.push_back(Crc32c(std::span(bytes).subspan(i * 256, 256)));
        const auto taken = table.Take(ticket, {1024, 4, ManifestCrc(crcs)});
        if (taken.ok()) RC_ASSERT(*taken == bytes);
        break;
      }
      default:
        clock.Advance(arg % 8);
        table.Sweep();
    }
    RC_ASSERT(table.counters().bytes_held ==
              1024 * (table.counters().granted - table.counters().released));
  }
  clock.Advance(10);
  table.Sweep();
  RC_ASSERT(table.counters().granted == table.counters().released);
  RC_ASSERT(table.counters().bytes_held == 0);
}

}  // namespace
}  // namespace deepinfer
