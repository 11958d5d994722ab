// Space that runs short: which segments go, and what of them is copied.
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace deepinfer
