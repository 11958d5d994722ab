#include "kvcache/block_index.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>
#include <cstring>
#include <map>
#include <tuple>

#include "kvcache/breaker.h"
#include "kvcache/reuse_model.h"
#include "kvcache/write_budget.h"

namespace deepinfer {
namespace {

BlockKey Key(uint32_t number) { return {Sha256(std::to_string(number))}; }

IndexedBlock At(uint32_t segment, uint32_t record) {
  IndexedBlock block;
  block.location = {segment, record};
  return block;
}

TEST(BlockIndex, KeepsEveryFieldOfAnEntry) {
  BlockIndex index;
  IndexedBlock block = At(0xFFFFFF, 65'535);
  block.retention = RetentionClass::kPinned;
  block.absolute_deadline = true;
  block.touches = 200;
  block.replay_gen = 255;
  block.tenant = 65535;
  block.touched_minute = 0xFFFFFE;
  ASSERT_TRUE(index.Insert(Key(1), block));
  const auto found = index.Find(Key(1));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->location, block.location);
  EXPECT_EQ(found->retention, RetentionClass::kPinned);
  EXPECT_TRUE(found->absolute_deadline);
  EXPECT_EQ(found->touches, 200);
  EXPECT_EQ(found->replay_gen, 255);
  EXPECT_EQ(found->tenant, 65535);
  EXPECT_EQ(found->touched_minute, 0xFFFFFEu);
}

TEST(BlockIndex, InsertsManyAsItInsertsOne) {
  BlockIndex one;
  BlockIndex many;
  std::vector<KeyedBlock> blocks;
  for (uint32_t i = 0; i < 5000; ++i) {
    IndexedBlock block = At(1 + i % 7, i % 1000);
    block.tenant = static_cast<uint16_t>(i % 3);
    // Every tenth key a second time.
    blocks.push_back({Key(i % 10 == 9 ? i - 5 : i), block});
  }
  size_t refused = 0;
  for (const KeyedBlock& b : blocks) refused += one.Insert(b.key, b.block) ? 0 : 1;
  EXPECT_EQ(many.InsertAll(blocks).size(), refused);
  EXPECT_EQ(refused, 500u);
  EXPECT_EQ(many.size(), one.size());
  for (const KeyedBlock& b : blocks) {
    EXPECT_EQ(many.Find(b.key)->location, one.Find(b.key)->location);
  }
  EXPECT_EQ(many.InsertAll(blocks).size(), blocks.size());
  EXPECT_TRUE(many.InsertAll({}).empty());
}

TEST(BlockIndex, CountsByTenantAndClass) {
  BlockIndex index;
  IndexedBlock block = At(1, 5);
  block.tenant = 300;
  block.retention = RetentionClass::kAgent;
  const auto counts = [&] {
    return std::tuple(index.CountOf(300, RetentionClass::kAgent),
                      index.CountOf(300, RetentionClass::kChat));
  };
  ASSERT_TRUE(index.Insert(Key(1), block));
  ASSERT_TRUE(index.Insert(Key(2), block));
  EXPECT_EQ(counts(), std::tuple(2, 0));
  index.Touch(std::array{Key(1)}, 50, RetentionClass::kChat);
  EXPECT_EQ(counts(), std::tuple(1, 1));
  EXPECT_TRUE(index.Erase(Key(1), {1, 5}));
  EXPECT_EQ(counts(), std::tuple(1, 0));
  IndexedBlock pinned = At(2, 6);
  pinned.retention = RetentionClass::kPinned;
  EXPECT_TRUE(index.Replace(Key(2), {1, 5}, pinned));
  EXPECT_EQ(index.CountOf(300, RetentionClass::kPinned), 1);
  (void)index.EraseIf([](const IndexedBlock&) { return true; });
  EXPECT_EQ(counts(), std::tuple(0, 0));
  EXPECT_EQ(index.CountOf(300, RetentionClass::kPinned), 0);
  EXPECT_EQ(index.CountOf(65'535, RetentionClass::kChat), 0);
}

TEST(BlockIndex, TakesAtMost32BytesABlockHoweverItGrew) {
  BlockIndex index;
  for (uint32_t i = 0; i < 200'000; ++i) {
    BlockKey key;
    const uint64_t words[2] = {(uint64_t{i} + 1) * 0x9E3779B97F4A7C15, i};
    std::memcpy(key.bytes.data(), words, sizeof(words));
    ASSERT_TRUE(index.Insert(key, At(1, i % 1000)));
    if (i >= 50'000 && i % 1000 == 0) {
      ASSERT_LE(index.resident_bytes(), int64_t{32} * (i + 1)) << i;
    }
  }
}

TEST(BlockIndex, FirstWriterWinsAndOnlyTheRightLocationLeaves) {
  BlockIndex index;
  EXPECT_TRUE(index.Insert(Key(1), At(1, 5)));
  EXPECT_FALSE(index.Insert(Key(1), At(2, 6)));
  EXPECT_FALSE(index.Erase(Key(1), {2, 6}));
  EXPECT_FALSE(index.Move(Key(1), {2, 6}, {3, 7}));
  EXPECT_TRUE(index.Move(Key(1), {1, 5}, {3, 7}));
  EXPECT_TRUE(index.Erase(Key(1), {3, 7}));
  EXPECT_EQ(index.size(), 0);
}

TEST(BlockIndex, TouchesRaiseTheClassAndNeverTheAge) {
  BlockIndex index;
  IndexedBlock block = At(1, 1);
  block.retention = RetentionClass::kAgent;
  block.touched_minute = 100;
  index.Insert(Key(1), block);
  const std::vector<BlockKey> keys = {Key(1), Key(2)};
  index.Touch(keys, 50, RetentionClass::kChat);
  index.Touch(keys, 200, RetentionClass::kBatch);
  EXPECT_EQ(index.Find(Key(1))->touched_minute, 200u);
  EXPECT_EQ(index.Find(Key(1))->touches, 2);
  EXPECT_EQ(index.Find(Key(1))->retention, RetentionClass::kChat);
  for (int i = 0; i < 300; ++i) index.Touch(keys, 200, RetentionClass::kBatch);
  EXPECT_EQ(index.Find(Key(1))->touches, 255);
}

TEST(BlockIndex, ReservedRoomIsEnough) {
  BlockIndex index;
  constexpr uint32_t kBlocks = 100'000;
  for (uint32_t i = 0; i < 10; ++i) ASSERT_TRUE(index.Insert(Key(i), At(1 + i, i % 1000)));
  index.Reserve(kBlocks);
  const int64_t reserved = index.resident_bytes();
  EXPECT_LT(reserved, int64_t{kBlocks} * 32);
  for (uint32_t i = 10; i < kBlocks; ++i) {
    ASSERT_TRUE(index.Insert(Key(i), At(1 + i, i % 1000)));
  }
  EXPECT_EQ(index.resident_bytes(), reserved);
  index.Reserve(1);
  for (uint32_t i = 0; i < kBlocks; ++i) {
    ASSERT_EQ(index.Find(Key(i))->location, At(1 + i, i % 1000).location);
  }
}

RC_GTEST_PROP(BlockIndexProperty, AgreesWithAMap, ()) {
  BlockIndex index;
  std::map<uint32_t, BlockLocation> model;
  const auto steps = *rc::gen::inRange(1, 600);
  for (int step = 0; step < steps; ++step) {
    const auto number = *rc::gen::inRange<uint32_t>(0, 400);
    const BlockLocation location{*rc::gen::inRange<uint32_t>(1, 4), number};
    const auto it = model.find(number);
    switch (*rc::gen::inRange(0, 4)) {
      case 0:
      case 1:
        RC_ASSERT(index.Insert(Key(number), At(location.segment, location.record)) ==
                  (it == model.end()));
        model.try_emplace(number, location);
        break;
      case 2: {
        const bool there = it != model.end() && it->second == location;
        RC_ASSERT(index.Erase(Key(number), location) == there);
        if (there) model.erase(it);
        break;
      }
      case 3: {
        const BlockLocation to{9, step < 0 ? 0u : static_cast<uint32_t>(step)};
        const bool there = it != model.end() && it->second == location;
        RC_ASSERT(index.Move(Key(number), location, to) == there);
        if (there) it->second = to;
        break;
      }
    }
    RC_ASSERT(index.size() == static_cast<int64_t>(model.size()));
  }
  for (uint32_t number = 0; number < 400; ++number) {
    const auto found = index.Find(Key(number));
    const auto it = model.find(number);
    RC_ASSERT(found.has_value() == (it != model.end()));
    if (found) RC_ASSERT((found->location == it->second));
  }
}

TEST(CircuitBreaker, OpensOnErrorsAndProbesWithGrowingPauses) {
  CircuitBreaker breaker;
  int64_t now_us = 0;
  for (int i = 0; i < 3; ++i) breaker.Record(ReadPermit::kGranted, false, 1000, now_us);
  EXPECT_EQ(breaker.Allow(now_us), ReadPermit::kRefused);
  EXPECT_TRUE(breaker.IsOff(now_us));
  EXPECT_EQ(breaker.StateText(now_us), "off: errors");
  for (const int64_t pause_us : {5'000'000, 10'000'000, 20'000'000}) {
    EXPECT_EQ(breaker.Allow(now_us + pause_us - 1), ReadPermit::kRefused);
    now_us += pause_us;
    EXPECT_FALSE(breaker.IsOff(now_us));
    EXPECT_EQ(breaker.Allow(now_us), ReadPermit::kProbe);
    EXPECT_EQ(breaker.Allow(now_us), ReadPermit::kRefused);  // one probe at a time
    EXPECT_EQ(breaker.StateText(now_us), "degraded: errors");
    breaker.Record(ReadPermit::kGranted, true, 1000, now_us);  // sent before it opened
    EXPECT_EQ(breaker.StateText(now_us), "degraded: errors");
    breaker.Record(ReadPermit::kProbe, false, 1000, now_us);
  }
  now_us += 40'000'000;
  EXPECT_EQ(breaker.Allow(now_us), ReadPermit::kProbe);
  breaker.Record(ReadPermit::kProbe, true, 1000, now_us);
  EXPECT_EQ(breaker.Allow(now_us), ReadPermit::kGranted);
  EXPECT_EQ(breaker.StateText(now_us), "on");
}

TEST(CircuitBreaker, OpensOnReadsThatDoNotEnd) {
  CircuitBreaker breaker;
  // A load that was given a millisecond says nothing about the disk.
  for (int i = 0; i < 10; ++i) breaker.RecordLate(ReadPermit::kGranted, 1000, i);
  EXPECT_EQ(breaker.StateText(10), "on");
  for (int i = 0; i < 3; ++i) breaker.RecordLate(ReadPermit::kGranted, 200'000, i);
  EXPECT_EQ(breaker.StateText(10), "off: errors");
  EXPECT_EQ(breaker.Allow(5'000'010), ReadPermit::kProbe);
  breaker.RecordLate(ReadPermit::kProbe, 200'000, 5'200'010);
  EXPECT_EQ(breaker.StateText(5'200'010), "off: errors");
  EXPECT_EQ(breaker.Allow(15'200'010), ReadPermit::kProbe);
}

TEST(CircuitBreaker, ToleratesRareErrors) {
  CircuitBreaker breaker;
  for (int i = 0; i < 2000; ++i) breaker.Record(ReadPermit::kGranted, i % 200 != 0, 1000, i);
  EXPECT_EQ(breaker.StateText(2000), "on");
}

TEST(CircuitBreaker, OpensWhenReadsBecomeTenTimesSlower) {
  CircuitBreaker breaker;
  for (int i = 0; i < 512; ++i) breaker.Record(ReadPermit::kGranted, true, 20'000, i);
  EXPECT_EQ(breaker.StateText(512), "on");
  for (int i = 0; i < 256; ++i) {
    breaker.Record(ReadPermit::kGranted, true, 300'000, 1000 + i);
  }
  EXPECT_EQ(breaker.StateText(1300), "off: latency");
}

constexpr int64_t kDayUs = int64_t{24} * 3600 * 1'000'000;

TEST(WriteBudget, WithoutALimitEverythingIsAdmitted) {
  WriteBudget budget(0, int64_t{1} << 50, 0, 0);
  EXPECT_TRUE(budget.Admit(RetentionClass::kBatch, {}, 0));
  EXPECT_TRUE(budget.Admit(RetentionClass::kBatch, {}, 0));
  EXPECT_TRUE(budget.AdmitCopy(0));
  EXPECT_EQ(budget.Level(0), 1);
}

// A bucket of a million bytes, in records of a hundredth of it, that may be overdrawn by a fifth.
constexpr int64_t kDailyBytes = 12'000'000;
constexpr int64_t kRecordBytes = 10'000;
constexpr int64_t kSegmentBytes = 200'000;

void ChargeRecords(WriteBudget* budget, int num) {
  for (int i = 0; i < num; ++i) budget->ChargeOrdered(0);
}

BlockKey KeyNumber(int64_t number) {
  BlockKey key;
  std::memcpy(key.bytes.data(), &number, sizeof(number));
  return key;
}

TEST(WriteBudget, ClassesTurnSelectiveInOrder) {
  WriteBudget budget(kDailyBytes, kRecordBytes, kSegmentBytes, 0);
  int64_t next = 0;
  const auto admits = [&](RetentionClass retention) {
    const bool admitted = budget.Admit(retention, KeyNumber(++next), 0);
    if (admitted) budget.Refund();
    return admitted;
  };
  for (const auto& [charge, batch, agent, chat] :
       {std::tuple(40, true, true, true), std::tuple(20, false, true, true),
        std::tuple(20, false, false, true), std::tuple(25, false, false, false)}) {
    ChargeRecords(&budget, charge);
    EXPECT_EQ(admits(RetentionClass::kBatch), batch) << budget.Level(0);
    EXPECT_EQ(admits(RetentionClass::kAgent), agent) << budget.Level(0);
    EXPECT_EQ(admits(RetentionClass::kChat), chat) << budget.Level(0);
    EXPECT_TRUE(admits(RetentionClass::kPinned));
  }
}

TEST(WriteBudget, OfferedAgainABlockIsAdmittedUntilTheBucketIsOverdrawnByASegment) {
  WriteBudget budget(kDailyBytes, kRecordBytes, kSegmentBytes, 0);
  ChargeRecords(&budget, 119);
  EXPECT_FALSE(budget.Admit(RetentionClass::kChat, KeyNumber(1), 0));
  EXPECT_TRUE(budget.Admit(RetentionClass::kChat, KeyNumber(1), 0));
  EXPECT_FALSE(budget.Admit(RetentionClass::kChat, KeyNumber(1), 0));
  EXPECT_FALSE(budget.Admit(RetentionClass::kPinned, KeyNumber(2), 0));
  EXPECT_FALSE(budget.AdmitCopy(0));
  budget.Refund();
  EXPECT_TRUE(budget.AdmitCopy(0));
}

TEST(WriteBudget, ABurstTakesNoMoreThanIsLeft) {
  WriteBudget budget(kDailyBytes, kRecordBytes, kSegmentBytes, 0);
  // All of them are admitted before any is written, every other one for the second time.
  int64_t admitted = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    admitted += budget.Admit(RetentionClass::kChat, KeyNumber(i / 2), 0) ? 1 : 0;
    admitted += budget.AdmitCopy(0) ? 1 : 0;
  }
  EXPECT_EQ(admitted, (1'000'000 + kSegmentBytes) / kRecordBytes);
  EXPECT_NEAR(budget.Level(0), -0.2, 1e-9);
}

TEST(WriteBudget, ABurstOverdrawsASmallBucketByHalfOfIt) {
  WriteBudget budget(12 * 8 * kRecordBytes, kRecordBytes, kSegmentBytes, 0);
  int admitted = 0;
  for (int i = 0; i < 100; ++i) admitted += budget.AdmitCopy(0) ? 1 : 0;
  EXPECT_EQ(admitted, 8 + 4);
}

TEST(WriteBudget, ABucketBelowARecordLetsOneThroughAtATime) {
  WriteBudget budget(6 * kRecordBytes, kRecordBytes, kSegmentBytes, 0);
  EXPECT_TRUE(budget.AdmitCopy(0));
  EXPECT_FALSE(budget.AdmitCopy(0));
}

TEST(WriteBudget, ADayOfWritingStaysWithinTheBudget) {
  constexpr int64_t kBlock = 1000;
  WriteBudget budget(kDailyBytes, kBlock, kSegmentBytes, 0);
  int64_t written = 0;
  for (int64_t i = 0; i < 200'000; ++i) {
    const int64_t now_us = i * (3 * kDayUs / 200'000);
    if (budget.Admit(RetentionClass::kChat, KeyNumber(i), now_us)) written += kBlock;
  }
  // Three days and the bucket that was full at the begin.
  EXPECT_LE(written, 3 * kDailyBytes + kDailyBytes / 12 + kBlock);
  EXPECT_GE(written, 3 * kDailyBytes);
}

TEST(ReuseModel, LearnsWhichBlocksComeBack) {
  ReuseModel model;
  for (int i = 0; i < 1000; ++i) {
    model.BeginRest(RetentionClass::kChat, 0);
    if (i % 4 == 0) {
      model.EndRest(RetentionClass::kChat, 0, 5);
      model.BeginRest(RetentionClass::kChat, 1);
      if (i % 8 == 0) model.EndRest(RetentionClass::kChat, 1, 5);
    }
  }
  EXPECT_NEAR(model.ChanceOfReuse(RetentionClass::kChat, 0, 0), 0.25, 0.02);
  EXPECT_NEAR(model.ChanceOfReuse(RetentionClass::kChat, 1, 0), 0.5, 0.05);
  // Nobody has come back after an hour.
  EXPECT_LT(model.ChanceOfReuse(RetentionClass::kChat, 0, 60), 0.02);
  model.Halve();
  EXPECT_NEAR(model.ChanceOfReuse(RetentionClass::kChat, 0, 0), 0.25, 0.02);
}

}  // namespace
}  // namespace deepinfer
