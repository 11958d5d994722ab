// The store as its callers see it, on a file system in memory.
#include <gtest/gtest.h>

#include <condition_variable>
#include <future>
#include <mutex>
#include <random>
#include <thread>

#include "kvcache/segment_file.h"
#include "kvcache/tenant_keys.h"
#include "support/kv_store_fixture.h"
#include "support/wait_until.h"

namespace deepinfer {
namespace {

class KvStoreTest : public testing::Test, public KvStoreFixture {
 protected:
  void SetUp() override { Open(); }
};

TEST_F(KvStoreTest, ReturnsCommittedBlocksBitForBit) {
  PublishChain(1, 20);
  EXPECT_EQ(LoadChain(1, 20), 0);  // not committed yet
  store->Flush(false);
  EXPECT_EQ(LoadChain(1, 20), 20);
  EXPECT_EQ(LoadChain(2, 20), 0);
  EXPECT_EQ(store->counters().corrupt_records, 0);
}

TEST_F(KvStoreTest, CommitsAGroupWhenItIsOldOrLarge) {
  Publish(1, 0);
  store->RunWriter();
  EXPECT_EQ(LoadChain(1, 1), 0);
  clock.Advance(options.group_commit_us);
  store->RunWriter();
  EXPECT_EQ(LoadChain(1, 1), 1);
  options.group_commit_bytes = 4 * options.layout.record_bytes();
  Open();
  PublishChain(2, 5);
  store->RunWriter();
  EXPECT_EQ(LoadChain(2, 5), 4);
}

TEST_F(KvStoreTest, StoresEachBlockOnce) {
  EXPECT_EQ(Publish(1, 0), PublishResult::kQueued);
  EXPECT_EQ(Publish(1, 0), PublishResult::kExists);
  store->Flush(false);
  EXPECT_EQ(Publish(1, 0), PublishResult::kExists);
  EXPECT_EQ(store->counters().written_blocks, 1);
}

TEST_F(KvStoreTest, DropsTheNewestWriteWhenTheQueueIsFull) {
  options.write_queue_bytes = 3 * options.layout.record_bytes();
  Open();
  for (uint32_t block = 0; block < 5; ++block) {
    EXPECT_EQ(Publish(1, block), block < 3 ? PublishResult::kQueued : PublishResult::kDroppedFull);
  }
  store->Flush(false);
  EXPECT_EQ(LoadChain(1, 5), 3);
  EXPECT_EQ(store->counters().dropped_writes, 2);
  EXPECT_EQ(Publish(1, 3), PublishResult::kQueued);
}

TEST_F(KvStoreTest, FindsEverythingAgainAfterARestart) {
  PublishChain(1, 40);  // two sealed segments and an open one
  store->Flush(false);
  Open();
  EXPECT_EQ(LoadChain(1, 40), 40);
  for (const std::string& path : SegmentPaths()) EXPECT_TRUE(path.ends_with(".seg")) << path;
}

TEST_F(KvStoreTest, HitEndsAtTheFirstBlockAboveTheGeneration) {
  PublishRequest request;
  Publish(1, 0, request);
  request.replay_gen = 2;
  Publish(1, 1, request);
  store->Flush(false);
  const auto keys = NumberedKeys(1, 2);
  EXPECT_EQ(store->Lookup(keys, 2).blocks.size(), 2u);
  const LookupResult exact = store->Lookup(keys, 0);
  EXPECT_EQ(exact.blocks.size(), 1u);
  EXPECT_EQ(exact.reason, MissReason::kReplayGen);
  Open();
  EXPECT_EQ(store->Lookup(keys, 1).blocks.size(), 1u);
}

TEST_F(KvStoreTest, ALowerGenerationTakesThePlaceOfAStoredBlockWhenAskedTo) {
  Open();
  PublishRequest request;
  request.replay_gen = 3;
  Publish(1, 0, request);
  store->Flush(true);
  request.replay_gen = 1;
  EXPECT_EQ(Publish(1, 0, request), PublishResult::kExists);
  request.replace_above_gen = 3;
  EXPECT_EQ(Publish(1, 0, request), PublishResult::kExists);
  request.replace_above_gen = 2;
  EXPECT_EQ(Publish(1, 0, request), PublishResult::kQueued);
  store->Flush(true);
  for (int start = 0; start < 2; ++start) {
    EXPECT_EQ(store->context().index.Find(NumberedKey(1, 0))->replay_gen, 1);
    EXPECT_EQ(LoadChain(1, 1), 1);
    EXPECT_EQ(store->Stats().blocks, 1);
    Open();
  }
}

TEST_F(KvStoreTest, ALowerGenerationLivesAsLongAsTheBlockWhosePlaceItTakes) {
  PublishRequest pinned;
  pinned.retention = RetentionClass::kPinned;
  pinned.replay_gen = 3;
  PublishChain(1, 2, pinned);
  store->Flush(true);
  PublishRequest replacing;
  replacing.replace_above_gen = 0;
  EXPECT_EQ(Publish(1, 0, replacing), PublishResult::kQueued);
  // One that has to leave soon leaves it alone.
  replacing.max_lifetime_hours = 1;
  EXPECT_EQ(Publish(1, 1, replacing), PublishResult::kExists);
  store->Flush(true);
  for (int start = 0; start < 2; ++start) {
    EXPECT_EQ(store->context().index.Find(NumberedKey(1, 0))->replay_gen, 0);
    EXPECT_EQ(store->context().index.Find(NumberedKey(1, 0))->retention, RetentionClass::kPinned);
    for (const SegmentInfo& info : store->context().segments.List()) {
      EXPECT_EQ(info.superblock.retention, static_cast<uint8_t>(RetentionClass::kPinned));
    }
    Open();
  }
  PassHours(1000);
  RunJanitorToTheEnd();
  EXPECT_EQ(LoadChain(1, 2), 2);
}

TEST_F(KvStoreTest, RefusesAFolderOfAnotherNamespace) {
  // Equal first 16 hex digits, another rest.
  store.reset();
  KvStoreOptions other = options;
  other.namespace_id[31] ^= 1;
  const auto opened = KvStore::Open(other, files.get(), &clock, &wall_clock);
  EXPECT_EQ(opened.status().code(), StatusCode::kDataCorruption);
}

TEST_F(KvStoreTest, ASegmentThatVanishesIsAMiss) {
  PublishChain(1, 3);
  store->Flush(true);
  ASSERT_TRUE(files->Remove(SegmentPaths()[0]).ok());
  EXPECT_EQ(LoadChain(1, 3), 0);
  EXPECT_EQ(store->counters().corrupt_records, 0);
  EXPECT_EQ(store->Stats().blocks, 0);
}

TEST_F(KvStoreTest, ReadErrorsAreMissesAndKeepTheBlocks) {
  PublishChain(1, 3);
  store->Flush(true);
  files->set_fault([](const std::string& operation, const std::string&) {
    return operation == "read" ? Unavailable("EIO") : OkStatus();
  });
  EXPECT_EQ(LoadChain(1, 3), 0);
  EXPECT_EQ(store->counters().read_errors, 1);
  files->set_fault(nullptr);
  EXPECT_EQ(LoadChain(1, 3), 3);
}

TEST_F(KvStoreTest, AFullDiskDropsWritesAndServesTheRest) {
  PublishChain(1, 5);
  store->Flush(false);
  files->set_fault([](const std::string& operation, const std::string&) {
    return operation == "write" ? ResourceExhausted("ENOSPC") : OkStatus();
  });
  PublishChain(2, 5);
  store->Flush(false);
  EXPECT_EQ(LoadChain(2, 5), 0);
  EXPECT_EQ(store->counters().dropped_writes, 5);
  files->set_fault(nullptr);
  EXPECT_EQ(LoadChain(1, 5), 5);
  PublishChain(2, 5);
  store->Flush(false);
  EXPECT_EQ(LoadChain(2, 5), 5);
  Open();
  EXPECT_EQ(LoadChain(1, 5), 5);
  EXPECT_EQ(LoadChain(2, 5), 5);
}

TEST_F(KvStoreTest, AFailedSyncPublishesNothing) {
  files->set_fault([](const std::string& operation, const std::string&) {
    return operation == "sync" ? Unavailable("EIO") : OkStatus();
  });
  PublishChain(1, 5);
  store->Flush(false);
  EXPECT_EQ(store->Stats().blocks, 0);
  EXPECT_EQ(store->counters().dropped_writes, 5);
  EXPECT_FALSE(store->context().index.Contains(NumberedKey(1, 0)));
  files->set_fault(nullptr);
  PublishChain(1, 5);
  store->Flush(false);
  EXPECT_EQ(LoadChain(1, 5), 5);
}

TEST_F(KvStoreTest, BlocksExpireAfterTheTimeOfTheirClass) {
  PublishRequest agent;
  agent.retention = RetentionClass::kAgent;
  PublishChain(1, 4, agent);
  PublishChain(2, 4);
  store->Flush(true);
  PassHours(71);
  RunJanitorToTheEnd();
  EXPECT_EQ(LoadChain(1, 4), 4);
  PassHours(1 + 6);  // the deadline and the width of a bucket
  RunJanitorToTheEnd();
  EXPECT_EQ(LoadChain(1, 4), 0);
  EXPECT_EQ(LoadChain(2, 4), 4);
  EXPECT_EQ(store->counters().expired_blocks, 4);
  EXPECT_EQ(store->Lookup(NumberedKeys(1, 4), 0).reason, MissReason::kExpired);
  EXPECT_EQ(store->Lookup(NumberedKeys(9, 4), 0).reason, MissReason::kAbsent);
  EXPECT_EQ(SegmentPaths().size(), 1u);
  for (const auto& breaches : store->counters().retention_breaches) EXPECT_EQ(breaches, 0);
}

TEST_F(KvStoreTest, TouchedBlocksAreCopiedForwardWhenTheirSegmentExpires) {
  PublishChain(1, 4);
  PublishChain(2, 10);
  store->Flush(true);
  PassHours(100);
  store->Touch(NumberedKeys(1, 4), RetentionClass::kBatch);
  PassHours(81);
  RunJanitorToTheEnd();
  EXPECT_EQ(LoadChain(1, 4), 4);
  EXPECT_EQ(LoadChain(2, 10), 0);
  EXPECT_EQ(store->counters().copied_blocks, 4);
  EXPECT_EQ(store->counters().removed_segments, 1);
  Open();
  EXPECT_EQ(LoadChain(1, 4), 4);
  // 168 h after the touch, and a bucket.
  PassHours(100);
  RunJanitorToTheEnd();
  EXPECT_EQ(LoadChain(1, 4), 0);
}

TEST_F(KvStoreTest, MostlyLiveSegmentsStayAndMoveTheirBucket) {
  PublishChain(1, 10);
  PublishChain(2, 2);
  store->Flush(true);
  const std::string path = SegmentPaths()[0];
  PassHours(150);
  store->Touch(NumberedKeys(1, 10), RetentionClass::kChat);
  PassHours(31);
  RunJanitorToTheEnd();
  EXPECT_EQ(store->counters().moved_buckets, 1);
  EXPECT_EQ(store->counters().copied_blocks, 0);
  EXPECT_EQ(SegmentPaths(), std::vector<std::string>{path});
  EXPECT_EQ(LoadChain(1, 10), 10);
  EXPECT_EQ(LoadChain(2, 2), 0);
  Open();
  EXPECT_EQ(LoadChain(1, 10), 10);
}

TEST_F(KvStoreTest, TouchesSurviveARestart) {
  PublishChain(1, 2);
  PublishChain(2, 10);
  store->Flush(true);
  PassHours(100);
  store->Touch(NumberedKeys(1, 2), RetentionClass::kChat);
  Open();
  EXPECT_EQ(store->context().index.Find(NumberedKey(1, 0))->touches, 1);
  PassHours(81);
  RunJanitorToTheEnd();
  EXPECT_EQ(LoadChain(1, 2), 2);
  EXPECT_EQ(LoadChain(2, 10), 0);
}

TEST_F(KvStoreTest, AnAbsoluteDeadlineIsNotExtended) {
  PublishRequest brief;
  brief.max_lifetime_hours = 10;
  PublishChain(1, 10, brief);
  store->Flush(true);
  PassHours(9);
  store->Touch(NumberedKeys(1, 10), RetentionClass::kChat);
  PassHours(12);
  RunJanitorToTheEnd();
  EXPECT_EQ(LoadChain(1, 10), 0);
  EXPECT_EQ(store->counters().moved_buckets, 0);
}

TEST_F(KvStoreTest, ExpiryWaitsAfterAJumpOfTheCalendar) {
  PublishChain(1, 4);
  store->Flush(true);
  store->RunJanitor();
  wall_clock.AdvanceHours(200);  // only the calendar
  store->RunJanitor();
  EXPECT_EQ(LoadChain(1, 4), 4);
  EXPECT_EQ(store->counters().clock_jumps, 1);
  clock.Advance(599'000'000);
  store->RunJanitor();
  EXPECT_EQ(LoadChain(1, 4), 4);
  clock.Advance(2'000'000);
  store->RunJanitor();
  EXPECT_EQ(LoadChain(1, 4), 0);
}

TEST_F(KvStoreTest, ACalendarThatGoesBackOnlyDelaysExpiry) {
  PublishChain(1, 4);
  store->Flush(true);
  store->RunJanitor();
  wall_clock.AdvanceHours(-1);
  store->Touch(NumberedKeys(1, 4), RetentionClass::kChat);
  store->RunJanitor();
  EXPECT_EQ(LoadChain(1, 4), 4);
}

TEST_F(KvStoreTest, AnExpiredSegmentThatCannotBeReadIsTriedAgainAndLeavesNoEntryBehind) {
  PublishRequest request;
  request.tenant_tag = 7;
  PublishChain(1, 14, request);
  store->Flush(true);
  const auto fail_reads = [](const std::string& operation, const std::string&) {
    return operation == "read" ? Unavailable("a bad moment") : OkStatus();
  };
  PassHours(181);
  files->set_fault(fail_reads);
  store->RunJanitor();
  EXPECT_EQ(SegmentPaths().size(), 1u);
  PassHours(30);
  store->RunJanitor();
  EXPECT_TRUE(SegmentPaths().empty());
  EXPECT_EQ(store->Stats().blocks, 0);
  EXPECT_EQ(store->context().BytesByTenant().at(7), 0);
}

TEST_F(KvStoreTest, BlocksOfALostSegmentInsideTheirDeadlineCountAsBreaches) {
  PublishChain(1, 14);
  store->Flush(true);
  PassHours(100);
  store->Touch(NumberedKeys(1, 5), RetentionClass::kChat);
  PassHours(111);
  files->set_fault([](const std::string& operation, const std::string& path) {
    return operation == "read" && path.ends_with(".seg") ? Unavailable("bad sector") : OkStatus();
  });
  store->RunJanitor();
  EXPECT_TRUE(SegmentPaths().empty());
  EXPECT_EQ(store->Stats().blocks, 0);
  EXPECT_EQ(store->counters().retention_breaches[static_cast<size_t>(RetentionClass::kChat)], 5);
  EXPECT_EQ(store->Lookup(NumberedKeys(1, 1), 0).reason, MissReason::kEvictedEarly);
}

TEST_F(KvStoreTest, ErasedBytesThatCannotBeRewrittenLeaveWithTheirSegment) {
  PublishChain(1, 14);
  store->Flush(true);
  ASSERT_EQ(*store->EraseKeys(NumberedKeys(1, 3)), 3);
  files->set_fault([](const std::string& operation, const std::string& path) {
    return operation == "read" && path.ends_with(".seg") ? Unavailable("bad sector") : OkStatus();
  });
  store->RunJanitor();
  PassHours(181);
  store->RunJanitor();
  EXPECT_EQ(SegmentPaths().size(), 1u);
  PassHours(30);
  store->RunJanitor();
  EXPECT_TRUE(SegmentPaths().empty());
  for (const std::string& path : files->Paths()) EXPECT_FALSE(path.ends_with(".seg")) << path;
}

TEST_F(KvStoreTest, FilesInQuarantineLeaveAfterTheLongestLifeOfAClassIfThatEnds) {
  PublishChain(1, 3);
  store->Flush(true);
  const std::string path = SegmentPaths().at(0);
  const std::string bad = path.substr(0, path.rfind('.')) + ".bad";
  files->At(path, 64) ^= std::byte{1};
  files->At(path, options.layout.footer_offset() + kPageBytes - 1) ^= std::byte{1};
  const auto stays = [&] {
    PassHours(2);
    store->RunJanitor();
    return std::ranges::count(files->Paths(), bad) == 1;
  };
  Open();
  EXPECT_TRUE(stays());
  files->AdvanceClock(167 * kNsPerHour);
  EXPECT_TRUE(stays());
  files->AdvanceClock(2 * kNsPerHour);
  const KvStoreOptions usual = options;
  options.retention[static_cast<size_t>(RetentionClass::kChat)].ttl_hours = 0;
  Open();
  EXPECT_TRUE(stays());
  options = usual;
  Open();
  EXPECT_FALSE(stays());
}

TEST_F(KvStoreTest, ErasedBlocksNeverComeBack) {
  PublishRequest a;
  a.tenant_tag = 7;
  PublishRequest b;
  b.tenant_tag = 8;
  PublishChain(1, 6, a);
  PublishChain(2, 6, b);
  PublishChain(3, 2, b);
  store->Flush(true);
  EXPECT_EQ(*store->EraseTenant(7), 6);
  EXPECT_EQ(*store->EraseKeys(NumberedKeys(3, 1)), 1);
  EXPECT_EQ(LoadChain(1, 6), 0);
  Open();  // before the bytes are gone
  EXPECT_EQ(LoadChain(1, 6), 0);
  EXPECT_EQ(LoadChain(3, 2), 0);
  EXPECT_EQ(LoadChain(2, 6), 6);
}

TEST_F(KvStoreTest, ErasedBytesLeaveTheDisk) {
  PublishRequest a;
  a.tenant_tag = 7;
  PublishChain(1, 6, a);
  PublishChain(2, 3);
  store->Flush(true);
  const std::string path = SegmentPaths()[0];
  ASSERT_EQ(*store->EraseTenant(7), 6);
  RunJanitorToTheEnd();
  EXPECT_EQ(std::ranges::count(files->Paths(), path), 0);
  EXPECT_EQ(LoadChain(2, 3), 3);
  EXPECT_EQ(*store->EraseTenant(7), 0);
  // What the tenant writes afterwards is served.
  PublishChain(1, 2, a);
  store->Flush(false);
  Open();
  EXPECT_EQ(LoadChain(1, 6), 2);
}

TEST_F(KvStoreTest, ALoadKeepsWhatArrivedBeforeItsDeadline) {
  PublishChain(1, 6);
  store->Flush(true);
  PublishChain(1, 8);
  store->Flush(true);
  options.io_threads = 1;
  options.io_uring = false;
  Open();
  // Reads of the second segment do not return until the test lets them.
  std::mutex mutex;
  std::condition_variable changed;
  bool blocked = false;
  bool let_go = false;
  // Loaded newest first: the last path is that of blocks 0 to 5.
  const std::string fast = SegmentPaths().back();
  files->set_fault([&](const std::string& operation, const std::string& path) {
    if (operation != "read" || path == fast) return OkStatus();
    std::unique_lock lock(mutex);
    blocked = true;
    changed.notify_all();
    WaitUntil(changed, lock, "leave to read", [&] { return let_go; });
    return OkStatus();
  });
  const auto found = store->Lookup(NumberedKeys(1, 8), 0).blocks;
  ASSERT_EQ(found.size(), 8u);
  auto load = store->BeginLoad(found, clock.NowUs() + 1000);
  {
    std::unique_lock lock(mutex);
    WaitUntil(changed, lock, "a read", [&] { return blocked; });
  }
  EXPECT_EQ(load->Poll(clock.NowUs()), 6);
  EXPECT_FALSE(load->done());
  clock.Advance(1000);
  EXPECT_EQ(load->Poll(clock.NowUs()), 6);
  EXPECT_TRUE(load->done());
  EXPECT_EQ(store->counters().late_blocks, 2);
  load.reset();  // the read that is still running owns its buffer
  {
    const std::lock_guard lock(mutex);
    let_go = true;
  }
  changed.notify_all();
  SpinUntil("the end of the reads", [&] { return store->loader()->reads_in_flight() == 0; });
  files->set_fault(nullptr);
}

TEST_F(KvStoreTest, AStalledFileSystemCostsEachLoadItsDeadlineAndThenNothing) {
  PublishChain(1, 6);
  store->Flush(true);
  options.io_threads = 2;
  options.io_uring = false;
  Open();
  std::mutex mutex;
  std::condition_variable changed;
  bool stalled = true;
  // Opening stands still like reading: neither may happen on the thread that asks.
  files->set_fault([&](const std::string&, const std::string&) {
    std::unique_lock lock(mutex);
    WaitUntil(changed, lock, "the end of the stall", [&] { return !stalled; });
    return OkStatus();
  });
  int loads = 0;
  for (; store->Lookup(NumberedKeys(1, 6), 0).reason == MissReason::kNone; ++loads) {
    ASSERT_LT(loads, 10);
    const auto load =
        store->BeginLoad(store->Lookup(NumberedKeys(1, 6), 0).blocks, clock.NowUs() + 200'000);
    EXPECT_EQ(load->Poll(clock.NowUs()), 0);
    EXPECT_FALSE(load->done());
    clock.Advance(200'000);
    EXPECT_EQ(load->Poll(clock.NowUs()), 0);
    EXPECT_TRUE(load->done());
  }
  EXPECT_EQ(loads, 3);
  EXPECT_EQ(store->Lookup(NumberedKeys(1, 6), 0).reason, MissReason::kBreaker);
  EXPECT_EQ(store->Stats().tier_state, "off: errors");
  EXPECT_EQ(Publish(2, 0), PublishResult::kQueued);
  {
    const std::lock_guard lock(mutex);
    stalled = false;
  }
  changed.notify_all();
  SpinUntil("the end of the reads", [&] { return store->Stats().reads_in_flight == 0; });
  files->set_fault(nullptr);
  clock.Advance(5'000'000);
  auto load = store->BeginLoad(store->Lookup(NumberedKeys(1, 6), 0).blocks, INT64_MAX);
  while (!load->done()) (void)load->Poll(clock.NowUs());
  EXPECT_EQ(load->Poll(clock.NowUs()), 6);
  EXPECT_EQ(store->Stats().tier_state, "on");
}

TEST_F(KvStoreTest, AnEmptyWriteBudgetSparesTheDevice) {
  // Twelve records a day, one of them in the bucket.
  options.writes_per_day = 12.0 * static_cast<double>(options.layout.record_bytes()) /
                           static_cast<double>(options.space_bytes);
  Open();
  EXPECT_EQ(Publish(1, 0), PublishResult::kQueued);
  store->Flush(false);
  EXPECT_EQ(Publish(1, 1), PublishResult::kDroppedBudget);
  EXPECT_EQ(store->counters().spared_writes, 1);
  PassHours(2);
  EXPECT_EQ(Publish(1, 1), PublishResult::kQueued);
  store->Flush(true);
  EXPECT_EQ(LoadChain(1, 2), 2);
}

TEST_F(KvStoreTest, ABurstOverdrawsTheWriteBudgetByNoMoreThanHalfOfIt) {
  constexpr int64_t kInBucket = 6;
  options.writes_per_day = 12.0 * kInBucket * static_cast<double>(options.layout.record_bytes()) /
                           static_cast<double>(options.space_bytes);
  Open();
  // Offered twice, and before the writer has written any.
  for (int time = 0; time < 2; ++time) PublishChain(1, 100);
  EXPECT_NEAR(store->context().write_budget.Level(clock.NowUs()), -0.5, 1e-3);
  store->Flush(true);
  EXPECT_EQ(store->counters().written_blocks, kInBucket + kInBucket / 2);
  // The deficit comes in first, then what a block that nobody offered before may take.
  PassHours(1);
  EXPECT_EQ(Publish(2, 0), PublishResult::kDroppedBudget);
  PassHours(1);
  EXPECT_EQ(Publish(3, 0), PublishResult::kQueued);
}

TEST_F(KvStoreTest, WhatIsNotWrittenIsGivenBackToTheWriteBudget) {
  options.writes_per_day = 12.0 * static_cast<double>(options.layout.record_bytes()) /
                           static_cast<double>(options.space_bytes);
  options.write_queue_bytes = 0;
  Open();
  EXPECT_EQ(Publish(1, 0), PublishResult::kDroppedFull);
  EXPECT_EQ(store->context().write_budget.Level(clock.NowUs()), 1);
  options.write_queue_bytes = int64_t{1} << 20;
  Open();
  EXPECT_EQ(Publish(1, 0), PublishResult::kQueued);
  ASSERT_LT(store->context().write_budget.Level(clock.NowUs()), 1);
  // Erased on its way.
  ASSERT_TRUE(store->EraseKeys(NumberedKeys(1, 1)).ok());
  store->Flush(false);
  EXPECT_EQ(store->context().write_budget.Level(clock.NowUs()), 1);
}

class EncryptedStoreTest : public KvStoreTest {
 protected:
  void SetUp() override {
    (void)files->MakeDirectory("/keys");
    options.key_file = "/keys/file";
    const auto keys = TenantKeys::Open(files.get(), options.key_file);
    ASSERT_TRUE((*keys)->Create(7).ok());
    Open();
    secret.tenant_tag = 7;
    plain.tenant_tag = 8;
    PublishChain(1, 6, secret);
    PublishChain(2, 6, plain);
    store->Flush(true);
  }
  // Whether the bytes of a block stand anywhere on disk as they are.
  bool OnDisk(uint32_t chain, uint32_t block) {
    const auto payload = PayloadOfKey(options.layout, NumberedKey(chain, block));
    for (const std::string& path : files->Paths()) {
      const auto bytes = ReadWholeFile(files.get(), path, int64_t{1} << 30);
      const auto found =
          std::search(bytes->begin(), bytes->end(), payload.begin(), payload.begin() + 64);
      if (found != bytes->end()) return true;
    }
    return false;
  }
  PublishRequest secret;
  PublishRequest plain;
};

TEST_F(EncryptedStoreTest, BlocksOfATenantWithAKeyStandEncryptedOnDisk) {
  EXPECT_FALSE(OnDisk(1, 0));
  EXPECT_TRUE(OnDisk(2, 0));
  EXPECT_EQ(LoadChain(1, 6), 6);
  EXPECT_EQ(LoadChain(2, 6), 6);
  Open();
  EXPECT_EQ(LoadChain(1, 6), 6);
  EXPECT_EQ(LoadChain(2, 6), 6);
}

TEST_F(EncryptedStoreTest, WithoutTheKeyABlockIsAMiss) {
  options.key_file.clear();
  Open();
  EXPECT_EQ(LoadChain(1, 6), 0);
  EXPECT_EQ(LoadChain(2, 6), 6);
  EXPECT_GT(store->counters().keyless_blocks, 0);
  EXPECT_EQ(store->counters().corrupt_records, 0);
}

TEST_F(EncryptedStoreTest, UnderAnotherKeyABlockIsAMissUntilItsOwnIsBack) {
  const std::string right = options.key_file;
  options.key_file = "/keys/another";
  ASSERT_TRUE((*TenantKeys::Open(files.get(), options.key_file))->Create(7).ok());
  Open();
  for (int tries = 0; tries < 3; ++tries) EXPECT_EQ(LoadChain(1, 6), 0);
  EXPECT_EQ(LoadChain(2, 6), 6);
  EXPECT_GT(store->counters().keyless_blocks, 0);
  EXPECT_EQ(store->counters().corrupt_records, 0);
  EXPECT_EQ(store->counters().quarantined_segments, 0);
  options.key_file = right;
  Open();
  EXPECT_EQ(LoadChain(1, 6), 6);
}

TEST_F(EncryptedStoreTest, CopiesAreEncryptedAgain) {
  PassHours(100);
  store->Touch(NumberedKeys(1, 6), RetentionClass::kBatch);
  PassHours(81);
  RunJanitorToTheEnd();
  EXPECT_EQ(store->counters().copied_blocks, 6);
  EXPECT_EQ(LoadChain(1, 6), 6);
  EXPECT_FALSE(OnDisk(1, 0));
}

TEST_F(EncryptedStoreTest, ErasingATenantDestroysItsKey) {
  // A copy of the disk from before: what an erasure cannot reach.
  std::mt19937 random(1);
  auto before = files->PowerCut(&random);
  PublishChain(3, 2, secret);  // still on its way
  EXPECT_EQ(*store->EraseTenant(7), 6);
  store->Flush(true);
  EXPECT_EQ(LoadChain(1, 6), 0);
  EXPECT_EQ(LoadChain(3, 2), 0);
  EXPECT_EQ(Publish(4, 0, secret), PublishResult::kDroppedOff);
  EXPECT_EQ(LoadChain(2, 6), 6);
  // The old segments with the key file of now.
  const auto keys = ReadWholeFile(files.get(), options.key_file, 10'000);
  store.reset();
  (void)before->Remove(options.key_file);
  (void)(*before->Open(options.key_file, OpenMode::kCreatePrivate, false))->WriteAt(*keys, 0);
  files = std::move(before);
  Open();
  EXPECT_EQ(LoadChain(1, 6), 0);
  EXPECT_EQ(LoadChain(2, 6), 6);
}

TEST_F(EncryptedStoreTest, ANewKeyIsReadWhileTheStoreRuns) {
  ASSERT_EQ(*store->EraseTenant(7), 6);
  const auto keys = TenantKeys::Open(files.get(), options.key_file);
  files->AdvanceClock(1);
  ASSERT_TRUE((*keys)->Create(7).ok());
  store->RunJanitor();
  PublishChain(1, 3, secret);
  store->Flush(true);
  EXPECT_EQ(LoadChain(1, 6), 3);
  EXPECT_FALSE(OnDisk(1, 0));
}

TEST_F(KvStoreTest, CancelIsIdempotentAndKeepsTheVerifiedPrefix) {
  PublishChain(1, 3);
  store->Flush(false);
  const auto load = store->BeginLoad(store->Lookup(NumberedKeys(1, 3), 0).blocks, 1 << 30);
  EXPECT_EQ(load->Poll(0), 3);
  load->Cancel();
  load->Cancel();
  EXPECT_TRUE(load->done());
  EXPECT_EQ(load->Poll(0), 3);
  EXPECT_EQ(load->Payload(2).size(), static_cast<size_t>(options.layout.payload_bytes()));
}

TEST_F(KvStoreTest, ABreakerStopsReadingAfterManyErrors) {
  PublishChain(1, 1);
  store->Flush(true);
  files->set_fault([](const std::string& operation, const std::string&) {
    return operation == "read" ? Unavailable("EIO") : OkStatus();
  });
  for (int i = 0; i < 10; ++i) EXPECT_EQ(LoadChain(1, 1), 0);
  EXPECT_EQ(store->counters().read_errors, 3);
  EXPECT_EQ(store->Stats().tier_state, "off: errors");
  files->set_fault(nullptr);
  clock.Advance(5'000'000);
  EXPECT_EQ(LoadChain(1, 1), 1);
  EXPECT_EQ(store->Stats().tier_state, "on");
}

TEST_F(KvStoreTest, WhatIsErasedWhileSegmentsAreLoadedDoesNotComeBack) {
  PublishRequest tenant;
  tenant.tenant_tag = 7;
  PublishChain(1, 3);
  PublishChain(2, 3, tenant);
  PublishChain(3, 3);
  store->Flush(true);
  store.reset();
  // Loading waits at the first segment until everything is erased.
  std::promise<void> erased;
  const std::shared_future<void> go_on = erased.get_future().share();
  files->set_fault([go_on](const std::string& operation, const std::string& path) {
    if (operation == "read" && path.ends_with(".seg")) go_on.wait();
    return OkStatus();
  });
  options.background_threads = true;
  Open();
  EXPECT_TRUE(store->EraseKeys(NumberedKeys(1, 3)).ok());
  EXPECT_TRUE(store->EraseTenant(7).ok());
  erased.set_value();
  SpinUntil("the index", [&] { return store->counters().recovery_us > 0; });
  files->set_fault(nullptr);
  EXPECT_EQ(LoadChain(1, 3), 0);
  EXPECT_EQ(LoadChain(2, 3), 0);
  EXPECT_EQ(LoadChain(3, 3), 3);
}

TEST_F(KvStoreTest, FilesOfANewerVersionAreLeftAlone) {
  PublishChain(1, 3);
  store->Flush(true);
  const std::string path = SegmentPaths()[0];
  store.reset();
  files->At(path, 8) = std::byte{2};  // superblock version
  Open();
  EXPECT_EQ(LoadChain(1, 3), 0);
  EXPECT_EQ(std::ranges::count(files->Paths(), path), 1);
  files->At(path, 8) = std::byte{1};
  Open();
  EXPECT_EQ(LoadChain(1, 3), 3);
}

}  // namespace
}  // namespace deepinfer
