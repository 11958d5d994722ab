// What the checks between steps say about a state that is right, and about one that was broken in
// one place.

#include "engine/invariants.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "integration/engine/engine_fixture.h"
#include "integration/engine/step_driver.h"

namespace deepinfer {
namespace {

class Invariants : public EngineTest {
 protected:
  void SetUp() override {
    EngineOptions options = OneTokenPerStep();
    options.max_model_len = 512;
    options.max_num_batched_tokens = 300;
    driver_ = std::make_unique<StepDriver>(model_->get(), options);
    state().pins = std::make_shared<PinReturns>(nullptr);
    sequence_ = &driver_->Queue(Endless(RandomPrompt(300, 9), "sequence"));
    other_ = &driver_->Queue(Endless(RandomPrompt(40, 10), "other"));
    while (std::min(sequence_->num_generated, other_->num_generated) == 0) driver_->Step();
    ASSERT_EQ(sequence_->cache.num_published, 2);
    ASSERT_EQ(Breach(), "");
  }

  static EngineRequest Endless(std::vector<int32_t> prompt, std::string id) {
    EngineRequest r = GreedyRequest(std::move(prompt), 30, std::move(id));
    r.sampling.ignore_eos = true;
    return r;
  }
  EngineState& state() { return driver_->state(); }
  BlockPool& blocks() { return state().memory->blocks(); }
  int32_t* table() { return sequence_->device.block_table.get(); }

  static std::string Text(const Status& status) {
    return status.ok() ? std::string() : std::string(status.message());
  }
  std::string Breach() { return Text(CheckState(state())); }

  // The breach of a step with the one next row of the sequence, changed by `change`.
  template <typename Change>
  std::string RowBreach(Change change) {
    StepJob job;
    StepItem& item = job.items.emplace_back();
    item.sequence = sequence_;
    item.rows.start = sequence_->computed;
    item.rows.num_rows = 1;
    item.rows.block_table = table();
    item.rows.write_from = sequence_->cache.write_from;
    item.rows.window_floor = sequence_->cache.window_floor;
    item.rows.decoder_from = sequence_->cache.decoder_from;
    item.rows.decoder_origin = sequence_->cache.decoder_floor;
    change(&item);
    return Text(CheckRows(state(), job));
  }

  void End() {
    driver_->Finish(*sequence_);
    driver_->Finish(*other_);
  }

  std::unique_ptr<StepDriver> driver_;
  Sequence* sequence_ = nullptr;
  Sequence* other_ = nullptr;
};

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_F(Invariants, EveryReferenceHasAHolder) {
  blocks().AddRef(table()[0]);
  EXPECT_TRUE(Has(Breach(), "has 2 references and 1 holders")) << Breach();
  blocks().ReleaseChain({table(), 1});
  EXPECT_EQ(Breach(), "");
  // Two errors that add up to none.
  std::swap(table()[2], other_->device.block_table[0]);
  EXPECT_EQ(Breach(), "") << "open blocks are alike";
  const int32_t own = std::exchange(table()[2], other_->device.block_table[0]);
  EXPECT_TRUE(Has(Breach(), "references and")) << Breach();
  table()[2] = 0;
  EXPECT_TRUE(Has(Breach(), "block 0 is lent")) << Breach();
  table()[2] = own;
  EXPECT_EQ(Breach(), "");
}

TEST_F(Invariants, ASlotHasOneHolder) {
  const int32_t own = std::exchange(sequence_->cache.slot, other_->cache.slot);
  EXPECT_TRUE(Has(Breach(), "two sequences hold one slot")) << Breach();
  sequence_->cache.slot = own;
}

TEST_F(Invariants, CompleteBlocksAreTheOnesTheirKeysName) {
  std::swap(table()[0], table()[1]);
  EXPECT_TRUE(Has(Breach(), "not the one its key names")) << Breach();
  std::swap(table()[0], table()[1]);
  sequence_->cache.num_published = 1;
  EXPECT_TRUE(Has(Breach(), "an incomplete block is in the index")) << Breach();
  sequence_->cache.num_published = 3;
  EXPECT_TRUE(Has(Breach(), "offered that is not computed")) << Breach();
  sequence_->cache.num_published = 2;
  EXPECT_EQ(Breach(), "");
}

TEST_F(Invariants, NothingIsComputedThatWasNotLaunched) {
  ++sequence_->computed;
  EXPECT_TRUE(Has(Breach(), "before launch")) << Breach();
  --sequence_->computed;
}

TEST_F(Invariants, RowsFollowWhatWasComputedAboveTheClampsOfTheirWindows) {
  EXPECT_EQ(RowBreach([](StepItem*) {}), "");
  EXPECT_TRUE(Has(RowBreach([](StepItem* i) { ++i->rows.start; }), "do not follow"));
  EXPECT_TRUE(Has(RowBreach([](StepItem* i) { --i->rows.start; }), "do not follow"));
  EXPECT_TRUE(Has(RowBreach([](StepItem* i) { i->rows.window_floor = i->rows.start + 1; }),
                  "clamp of its window"));
  EXPECT_TRUE(Has(RowBreach([](StepItem* i) { i->rows.decoder_origin = i->rows.start + 1; }),
                  "clamp of its decoder window"));
  EXPECT_TRUE(Has(RowBreach([](StepItem* i) { i->rows.num_rows = 2 * kBlockTokens; }),
                  "behind the blocks"));
}

TEST_F(Invariants, RowsWriteToOpenBlocksOfTheirOwnOnly) {
  const int32_t computed = std::exchange(sequence_->computed, 100);
  EXPECT_TRUE(Has(RowBreach([](StepItem*) {}), "writes to a complete block"));
  // As a replay does.
  EXPECT_EQ(RowBreach([](StepItem* i) { i->rows.write_from = 256; }), "");
  sequence_->computed = computed;
  blocks().AddRef(table()[2]);
  EXPECT_TRUE(Has(RowBreach([](StepItem*) {}), "writes to a block of others"));
  other_->forked_from = sequence_->id;
  EXPECT_EQ(RowBreach([](StepItem*) {}), "") << "a branch does not write";
  other_->forked_from = 0;
  blocks().ReleaseChain({table() + 2, 1});
}

TEST_F(Invariants, WhatFailedOrEndedIsNotChecked) {
  const auto wrong = [](StepItem* i) { ++i->rows.start; };
  EXPECT_EQ(RowBreach([&](StepItem* i) {
              wrong(i);
              i->ran = false;
            }),
            "");
  EXPECT_EQ(RowBreach([&](StepItem* i) {
              wrong(i);
              i->status = Internal("failed");
            }),
            "");
}

TEST_F(Invariants, AnIdleEngineHoldsNothing) {
  EXPECT_TRUE(Has(Text(CheckIdle(state())), "references of blocks are left"));
  const int32_t block = table()[0];
  blocks().Pin(block);
  End();
  EXPECT_EQ(Breach(), "");
  EXPECT_TRUE(Has(Text(CheckIdle(state())), "pins of blocks are left"));
  blocks().Unpin(block);
  EXPECT_EQ(Text(CheckIdle(state())), "");
  (void)state().memory->swa().PutParkImage("gone", std::vector<std::byte>(16), 0);
  EXPECT_TRUE(Has(Text(CheckIdle(state())), "parked states are left"));
  (void)state().memory->swa().TakeParkImage("gone", 0);
  ++state().queued_prompts.tokens;
  EXPECT_TRUE(Has(Text(CheckIdle(state())), "sums over queued requests"));
  --state().queued_prompts.tokens;
  state().parked.push_back(nullptr);
  EXPECT_TRUE(Has(Text(CheckIdle(state())), "a sequence that is gone"));
  state().parked.clear();
  EXPECT_EQ(Text(CheckIdle(state())), "");
}

}  // namespace
}  // namespace deepinfer
