// Space that runs short: which segments go, and what of them is copied.
#include <gtest/gtest.h>

#include <random>

#include "support/kv_store_fixture.h"

namespace deepinfer {
namespace {

constexpr uint32_t kCapacity = 14;  // records of a segment
constexpr uint32_t kNumUsed = 4;    // no more of a segment are copied
constexpr uint32_t kNumChains = 8;
constexpr auto kChat = static_cast<size_t>(RetentionClass::kChat);

// A store of ten segments that makes room for six and a half when eight are full.
class PressureTest : public testing::Test, public KvStoreFixture {
 protected:
  PressureTest() {
    options.space_bytes = 10 * options.layout.segment_bytes();
    options.low_water_free_share = 0.25;
    options.high_water_free_share = 0.35;
  }
  void SetUp() override { ASSERT_EQ(options.layout.segment_capacity(), int64_t{kCapacity}); }

  static uint32_t Unused(uint32_t chain) { return 100 + chain; }
  // Eight segments, each with a few blocks that are used ever again and ten that never are.
  void FillWithBlocksInUse() {
    for (uint32_t chain = 1; chain <= kNumChains; ++chain) {
      PublishChain(chain, kNumUsed);
      PublishChain(Unused(chain), kCapacity - kNumUsed);
      store->Flush(true);
      PassHours(1);
    }
    for (int use = 0; use < 5; ++use) {
      for (uint32_t chain = 1; chain <= kNumChains; ++chain) {
        store->Touch(NumberedKeys(chain, kNumUsed), RetentionClass::kChat);
      }
      PassHours(1);
    }
    ASSERT_EQ(SegmentPaths().size(), size_t{kNumChains});
  }
  int64_t NumUsedLeft() {
    int64_t left = 0;
    for (uint32_t chain = 1; chain <= kNumChains; ++chain) left += LoadChain(chain, kNumUsed);
    return left;
  }
};

TEST_F(PressureTest, RemovesTheLeastValuableSegmentsAndCountsBreaches) {
  Open();
  for (uint32_t chain = 1; chain <= 8; ++chain) {
    PublishChain(chain, 14);
    store->Flush(true);
    PassHours(1);
  }
  // Chain 1 is used again and again; the others never.
  for (int use = 0; use < 20; ++use) {
    store->Touch(NumberedKeys(1, 14), RetentionClass::kChat);
    PassHours(1);
  }
  EXPECT_EQ(SegmentPaths().size(), 8u);
  store->RunJanitor();
  EXPECT_EQ(SegmentPaths().size(), 6u);
  EXPECT_EQ(LoadChain(1, 14), 14);
  EXPECT_EQ(store->counters().retention_breaches[static_cast<size_t>(RetentionClass::kChat)], 28);
  EXPECT_EQ(store->Lookup(NumberedKeys(2, 1), 0).reason, MissReason::kEvictedEarly);
}

TEST_F(PressureTest, CopiesBlocksInUseOutOfTheSegmentsThatGo) {
  Open();
  FillWithBlocksInUse();
  RunJanitorToTheEnd();
  EXPECT_EQ(NumUsedLeft(), int64_t{kNumChains * kNumUsed});
  // Three segments make room for two and for the copies of what was used in them.
  for (uint32_t chain = 1; chain <= 3; ++chain) EXPECT_EQ(LoadChain(Unused(chain), 1), 0) << chain;
  for (uint32_t chain = 4; chain <= kNumChains; ++chain) {
    EXPECT_EQ(LoadChain(Unused(chain), 10), 10) << chain;
  }
  EXPECT_EQ(store->counters().copied_blocks, 3 * int64_t{kNumUsed});
  EXPECT_EQ(store->counters().retention_breaches[kChat], 3 * 10);
  EXPECT_EQ(SegmentPaths().size(), 6u);
  Open();
  EXPECT_EQ(NumUsedLeft(), int64_t{kNumChains * kNumUsed}) << "after a restart";
}

TEST_F(PressureTest, CopiesNothingWhileTheWriteBudgetIsLow) {
  Open();
  FillWithBlocksInUse();
  // Two hours' worth are one and a half records, of which one is written.
  options.writes_per_day = 1.5 * 12 * static_cast<double>(options.layout.record_bytes()) /
                           static_cast<double>(options.space_bytes);
  Open();
  Publish(200, 0);
  store->Flush(false);
  ASSERT_LT(store->context().write_budget.Level(clock.NowUs()), 0.5);
  RunJanitorToTheEnd();
  EXPECT_EQ(store->counters().copied_blocks, 0);
  EXPECT_EQ(NumUsedLeft(), 5 * int64_t{kNumUsed}) << "three segments went as a whole";
}

TEST_F(PressureTest, CopiesNothingWhenTheFilesTakeMoreThanTheSpace) {
  Open();
  FillWithBlocksInUse();
  options.space_bytes = 7 * options.layout.segment_bytes();
  Open();
  RunJanitorToTheEnd();
  EXPECT_EQ(store->counters().copied_blocks, 0);
  EXPECT_LE(static_cast<int64_t>(SegmentPaths().size()) * options.layout.segment_bytes(),
            options.space_bytes);
}

TEST_F(PressureTest, ADiskThatTakesNoCopiesIsEmptiedAllTheSame) {
  Open();
  FillWithBlocksInUse();
  files->set_fault([](const std::string& operation, const std::string&) {
    return operation == "write" || operation == "allocate" ? ResourceExhausted("ENOSPC")
                                                           : OkStatus();
  });
  RunJanitorToTheEnd();
  EXPECT_EQ(SegmentPaths().size(), size_t{kNumChains})
      << "sources stay until their copies are made";
  files->set_fault(nullptr);
  RunJanitorToTheEnd();
  EXPECT_EQ(SegmentPaths().size(), 6u);
  EXPECT_EQ(NumUsedLeft(), int64_t{kNumChains * kNumUsed});
}

// Of any class, tenant and lifetime, in bursts between rounds of the janitor that come when they
// like: the files never take more than the space and the segments that may be open.
TEST_F(PressureTest, TheFilesStayWithinTheSpaceAndAConstant) {
  constexpr RetentionClass kClasses[] = {RetentionClass::kBatch, RetentionClass::kAgent,
                                         RetentionClass::kChat};
  const int64_t segment_bytes = options.layout.segment_bytes();
  for (const uint32_t seed : {1u, 2u, 3u}) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    store.reset();
    files = std::make_unique<MemoryFileSystem>();
    options.space_bytes = (1 + random() % 40) * segment_bytes;
    Open();
    const int64_t most_bytes =
        options.space_bytes + static_cast<int64_t>(kMaxOpenSegments) * segment_bytes;
    int64_t peak_bytes = 0;
    for (uint32_t chain = 0; chain < 250; ++chain) {
      PublishRequest request;
      request.retention = kClasses[random() % 3];
      request.tenant_tag = random() % 5;
      request.max_lifetime_hours = random() % 3 == 0 ? 1 + random() % 100 : 0;
      PublishChain(chain, 1 + random() % 60, request);
      if (random() % 4 == 0) store->Touch(NumberedKeys(random() % (chain + 1), 30), kClasses[1]);
      store->Flush(random() % 20 == 0);
      if (random() % 8 == 0) PassHours(random() % 12);
      if (random() % 6 == 0) store->RunJanitor();
      peak_bytes = std::max(peak_bytes, store->Stats().disk_bytes);
      ASSERT_LE(store->Stats().disk_bytes, most_bytes);
    }
    EXPECT_GT(peak_bytes, options.space_bytes) << "it came to the bound";
    EXPECT_GT(store->counters().dropped_by_reason[static_cast<size_t>(DropReason::kNoSpace)].load(),
              0);
    EXPECT_GT(store->counters().written_blocks, 0);
  }
}

TEST_F(PressureTest, AWriterThatRunsOutOfSpaceCallsTheJanitor) {
  options.space_bytes = 4 * options.layout.segment_bytes();
  Open();
  PublishChain(1, 4 * 14);
  store->Flush(true);
  EXPECT_FALSE(store->TakeWantsRoom());
  PublishChain(2, 100 * 14);
  store->Flush(true);
  EXPECT_EQ(SegmentPaths().size(), 4 + kMaxOpenSegments);
  EXPECT_TRUE(store->TakeWantsRoom());
  store->RunJanitor();
  EXPECT_LE(SegmentPaths().size(), 4u);
  EXPECT_EQ(Publish(3, 0), PublishResult::kQueued);
  store->Flush(true);
  EXPECT_EQ(LoadChain(3, 1), 1);
}

}  // namespace
}  // namespace deepinfer
