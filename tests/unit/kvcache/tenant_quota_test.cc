// Quotas of tenants, in all and by class: what is refused, and what leaves.
#include <gtest/gtest.h>

#include <random>

#include "support/kv_store_fixture.h"

namespace deepinfer {
namespace {

class TenantQuotaTest : public testing::Test, public KvStoreFixture {};

TEST_F(TenantQuotaTest, TenantsOverTheirQuotaAreRefusedAndGoFirst) {
  options.quotas.each.all_bytes = 10 * options.layout.record_bytes();
  options.space_bytes = 4 * options.layout.segment_bytes();
  options.low_water_free_share = 0.6;
  options.high_water_free_share = 0.7;
  Open();
  PublishRequest small;
  small.tenant_tag = 7;
  PublishChain(1, 4, small);
  store->Flush(true);
  PublishRequest large;
  large.tenant_tag = 8;
  for (uint32_t block = 0; block < 12; ++block) {
    Publish(2, block, large);
    store->Flush(false);
  }
  EXPECT_EQ(Publish(2, 12, large), PublishResult::kDroppedQuota);
  EXPECT_EQ(Publish(1, 4, small), PublishResult::kQueued);
  store->Flush(true);
  store->RunJanitor();
  EXPECT_EQ(LoadChain(2, 12), 0);
  EXPECT_EQ(LoadChain(1, 4), 4);
  EXPECT_EQ(store->context().BytesByTenant().at(8), 0);
}

TEST_F(TenantQuotaTest, BlocksOnTheirWayCountForAQuota) {
  options.quotas.each.all_bytes = 10 * options.layout.record_bytes();
  Open();
  PublishRequest request;
  request.tenant_tag = 8;
  for (uint32_t block = 0; block < 11; ++block) {
    EXPECT_EQ(Publish(1, block, request), PublishResult::kQueued) << block;
  }
  // Nothing of it is stored yet.
  EXPECT_EQ(Publish(1, 11, request), PublishResult::kDroppedQuota);
  EXPECT_EQ(store->counters().dropped_by_reason[static_cast<size_t>(DropReason::kTenantQuota)], 1);
  request.tenant_tag = 9;
  EXPECT_EQ(Publish(2, 0, request), PublishResult::kQueued);
  store->Flush(true);
  EXPECT_EQ(store->context().BytesByTenant().at(8), 11 * options.layout.record_bytes());
  // What failed on its way has given its room back.
  ASSERT_EQ(*store->EraseTenant(8), 11);
  request.tenant_tag = 8;
  files->set_fault([](const std::string& operation, const std::string&) {
    return operation == "write" ? ResourceExhausted("ENOSPC") : OkStatus();
  });
  for (uint32_t block = 0; block < 11; ++block) Publish(3, block, request);
  store->Flush(false);
  files->set_fault(nullptr);
  for (uint32_t block = 0; block < 11; ++block) {
    EXPECT_EQ(Publish(3, block, request), PublishResult::kQueued) << block;
  }
}

TEST_F(TenantQuotaTest, ATenantHasAQuotaInEachClass) {
  options.quotas.each.class_bytes[static_cast<size_t>(RetentionClass::kAgent)] =
      10 * options.layout.record_bytes();
  options.quotas.by_tag[9].class_bytes[static_cast<size_t>(RetentionClass::kAgent)] =
      20 * options.layout.record_bytes();
  Open();
  const auto publish_all = [&](uint64_t tenant, RetentionClass retention, uint32_t chain) {
    PublishRequest request;
    request.tenant_tag = tenant;
    request.retention = retention;
    uint32_t stored = 0;
    for (uint32_t block = 0; block < 40; ++block) {
      if (Publish(chain, block, request) == PublishResult::kQueued) ++stored;
    }
    return stored;
  };
  EXPECT_EQ(publish_all(8, RetentionClass::kAgent, 1), 11u);
  EXPECT_EQ(publish_all(8, RetentionClass::kChat, 2), 40u);
  EXPECT_EQ(publish_all(9, RetentionClass::kAgent, 3), 22u);
  EXPECT_EQ(store->counters().dropped_by_reason[static_cast<size_t>(DropReason::kClassQuota)],
            29 + 18);
  store->Flush(true);
  // Within a round all of it is back at 100 percent; what is over goes from the ends of prompts.
  EXPECT_EQ(store->TenantsOverQuota(), 2);
  RunJanitorToTheEnd();
  EXPECT_EQ(store->TenantsOverQuota(), 0);
  EXPECT_EQ(LoadChain(1, 40), 10);
  EXPECT_EQ(LoadChain(2, 40), 40);
  EXPECT_EQ(LoadChain(3, 40), 20);
  EXPECT_EQ(store->counters().quota_evictions[static_cast<size_t>(RetentionClass::kAgent)], 3);
  EXPECT_EQ(store->Lookup(NumberedKeys(1, 40), 0).reason, MissReason::kEvictedEarly);
  // It holds after a restart.
  Open();
  EXPECT_EQ(store->TenantsOverQuota(), 0);
  EXPECT_EQ(publish_all(8, RetentionClass::kAgent, 4), 1u);
}

TEST_F(TenantQuotaTest, ATouchThatRaisesTheClassCountsInTheNewOne) {
  options.quotas.each.class_bytes[static_cast<size_t>(RetentionClass::kChat)] =
      4 * options.layout.record_bytes();
  Open();
  PublishRequest request;
  request.tenant_tag = 8;
  request.retention = RetentionClass::kAgent;
  PublishChain(1, 10, request);
  store->Flush(true);
  EXPECT_EQ(store->TenantsOverQuota(), 0);
  store->Touch(NumberedKeys(1, 10), RetentionClass::kChat);
  EXPECT_EQ(store->TenantsOverQuota(), 1);
  RunJanitorToTheEnd();
  EXPECT_EQ(LoadChain(1, 10), 4);
}

TEST_F(TenantQuotaTest, QuotasTakeTheLeastValuableBlocksAndGiveTheirSpaceBack) {
  Open();
  PublishRequest small;
  small.tenant_tag = 7;
  PublishRequest large;
  large.tenant_tag = 8;
  for (uint32_t chain = 10; chain < 16; ++chain) PublishChain(chain, 14, large);
  PublishChain(1, 5, small);
  store->Flush(true);
  PassHours(2);
  for (int use = 0; use < 5; ++use) {
    store->Touch(NumberedKeys(12, 14), RetentionClass::kChat);
    PassHours(1);
  }
  // The operator lowers it.
  options.quotas.by_tag[8].all_bytes = 14 * options.layout.record_bytes();
  Open();
  RunJanitorToTheEnd();
  EXPECT_EQ(LoadChain(12, 14), 14);
  EXPECT_EQ(LoadChain(1, 5), 5);
  EXPECT_EQ(store->context().BytesByTenant().at(8), 14 * options.layout.record_bytes());
  EXPECT_EQ(store->counters().retention_breaches[static_cast<size_t>(RetentionClass::kChat)],
            5 * 14);
  EXPECT_LE(SegmentPaths().size(), 2u) << "segments without live blocks leave the disk";
}

class QuotaDropTest : public TenantQuotaTest {
 protected:
  static constexpr uint32_t kAllowed = 10;
  static constexpr uint32_t kPublished = 11;

  QuotaDropTest() { options.quotas.each.all_bytes = kAllowed * options.layout.record_bytes(); }
  void StoreChain(bool seal) {
    PublishRequest request;
    request.tenant_tag = 8;
    PublishChain(1, kPublished, request);
    store->Flush(seal);
  }
  // One block of the chain is beyond the quota, and leaves.
  void ExceedQuota(bool seal) {
    StoreChain(seal);
    ASSERT_EQ(LoadChain(1, kPublished), kPublished);
    RunJanitorToTheEnd();
    ASSERT_EQ(LoadChain(1, kPublished), kAllowed);
  }
};

TEST_F(QuotaDropTest, WhatLeftStaysAwayAfterARestart) {
  for (const bool sealed : {true, false}) {
    files = std::make_unique<MemoryFileSystem>();
    Open();
    ExceedQuota(sealed);
    Open();
    EXPECT_EQ(LoadChain(1, kPublished), kAllowed) << "sealed " << sealed;
    EXPECT_EQ(store->TenantsOverQuota(), 0);
  }
}

TEST_F(QuotaDropTest, WhatLeftStaysAwayAfterAPowerCut) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    files = std::make_unique<MemoryFileSystem>();
    Open();
    ExceedQuota(true);
    store.reset();
    std::mt19937 random(seed);
    files = files->PowerCut(&random);
    Open();
    EXPECT_EQ(LoadChain(1, kPublished), kAllowed) << "seed " << seed;
  }
}

TEST_F(QuotaDropTest, ABlockThatLeftMayBeStoredAgain) {
  Open();
  ExceedQuota(true);
  options.quotas = {};
  Open();
  StoreChain(true);
  EXPECT_EQ(LoadChain(1, kPublished), kPublished);
  Open();
  EXPECT_EQ(LoadChain(1, kPublished), kPublished);
}

TEST_F(QuotaDropTest, PeersDoNotLookForWhatLeft) {
  options.shared = true;
  options.boot_id = "one boot";
  Open();
  KvStoreOptions peer_options = options;
  peer_options.node = "other";
  peer_options.quotas = {};
  auto peer = *KvStore::Open(peer_options, files.get(), &clock, &wall_clock);
  const auto found = [&] {
    clock.Advance(options.peer_scan_us);
    peer->RunPeers();
    return peer->Lookup(NumberedKeys(1, kPublished), 65535).blocks.size();
  };
  StoreChain(true);
  EXPECT_EQ(found(), kPublished);
  RunJanitorToTheEnd();
  EXPECT_EQ(found(), kAllowed);
  // Nor does one that reads the log from its begin.
  peer.reset();
  peer = *KvStore::Open(peer_options, files.get(), &clock, &wall_clock);
  EXPECT_EQ(found(), kAllowed);
}

}  // namespace
}  // namespace deepinfer
