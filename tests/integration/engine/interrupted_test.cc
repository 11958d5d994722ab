// Rows that run again behind a hit or a lost image, seen step by step: parked in the middle of them
// a sequence goes on as if nothing had been, rows are counted once, and window state is kept only
// where it is whole (architecture.md §8).

#include <gtest/gtest.h>

#include <cstring>

#include "integration/engine/engine_fixture.h"
#include "integration/engine/step_driver.h"

namespace deepinfer {
namespace {

class Interrupted : public EngineTest {
 protected:
  // Steps are driven by hand.
  void SetUp() override {}

  static EngineOptions Options(ReplayMode replay, bool snapshots = false) {
    EngineOptions o;
    o.replay = replay;
    o.swa_snapshots = snapshots;
    o.min_hit_tokens = 128;
    o.max_num_seqs = 4;
    o.max_num_batched_tokens = 64;
    o.max_model_len = 2048;
    return o;
  }
  static std::unique_ptr<StepDriver> Start(const EngineOptions& options) {
    return std::make_unique<StepDriver>(model_->get(), options);
  }
  static EngineRequest Request(std::vector<int32_t> prompt, int32_t max_tokens = 8) {
    return StrictRequest(std::move(prompt), max_tokens, 5);
  }
  // The prompt's first `shared` tokens, then 150 others.
  static std::vector<int32_t> Parting(const std::vector<int32_t>& prompt, int32_t shared) {
    std::vector<int32_t> parting(prompt.begin(), prompt.begin() + shared);
    const std::vector<int32_t> other = RandomPrompt(150, 1234);
    parting.insert(parting.end(), other.begin(), other.end());
    return parting;
  }
  static void ExpectIdentity(const RequestCounters& c) {
    EXPECT_EQ(c.cached_tokens + c.computed_tokens, c.prompt_tokens);
  }
};

TEST_F(Interrupted, ParkedInAReplayItKeepsTheBlocksOfItsHit) {
  const std::vector<int32_t> prompt = RandomPrompt(1000, 40);
  for (const ReplayMode mode : {ReplayMode::kExact, ReplayMode::kBounded}) {
    for (const bool evicted : {false, true}) {
      EngineOptions o = Options(mode);
      o.max_num_batched_tokens = 32;
      const auto driver = Start(o);
      driver->Run(Request(prompt));
      const auto want = driver->Run(Request(prompt));
      int32_t parks = 0;
      for (bool in_replay = true; in_replay;) {
        const std::string where = "park " + std::to_string(parks) + (evicted ? " evicted" : "");
        // After one chunk more than before.
        int32_t chunks = 0;
        bool parked = false;
        const auto got = driver->Finish(driver->Queue(Request(prompt)), [&](Sequence& s) {
          if (parked || !s.holds_slot() || chunks++ < parks) return;
          parked = true;
          in_replay = s.computed < s.cache.write_from;
          driver->ParkNow(s);
          if (evicted) driver->state().memory->blocks().DropIdle();
        });
        got.ExpectSame(want, where);
        ExpectIdentity(got.counters);
        ++parks;
        if (evicted) driver->Run(Request(prompt));
      }
      EXPECT_GE(parks, 2) << "one of them inside the replay";
      EXPECT_EQ(driver->state().statistics.resumes_rebuilt, 0);
    }
  }
}

TEST_F(Interrupted, ABranchParkedBeforeItsFirstRowKeepsTheRowsOfItsLeader) {
  EngineOptions o = Options(ReplayMode::kExact);
  // The leader decodes first, so the branch waits for its row.
  o.max_num_batched_tokens = 1;
  const std::vector<int32_t> prompt = RandomPrompt(257, 41);
  const auto want = Start(Options(ReplayMode::kExact))->Run(Request(prompt));
  const auto driver = Start(o);
  Sequence& leader = driver->Queue(Request(prompt));
  Sequence& branch = driver->Add(Request(prompt));
  branch.state = SequenceState::kPending;
  leader.branches.push_back(branch.id);
  while (!branch.holds_slot()) driver->Step();
  ASSERT_EQ(branch.computed, 256);
  driver->ParkNow(branch);
  driver->state().memory->blocks().DropIdle();
  driver->Finish(leader).ExpectSame(want, "leader");
  driver->Finish(branch).ExpectSame(want, "branch");
}

TEST_F(Interrupted, WindowsWithoutTheirFirstRowsAreNotKept) {
  const std::vector<int32_t> prompt = RandomPrompt(900, 42);
  const int32_t edge = 768;  // eight rows behind the first row of the second run
  std::vector<StepDriver::Answer> answers;
  for (const uint32_t owner : {1u, 2u}) {
    const auto driver = Start(Options(ReplayMode::kBounded, true));
    driver->Run(Request(prompt));
    driver->LoseSnapshots(prompt);
    // Another request had the slot before.
    driver->Run(Request(RandomPrompt(500, 100 + owner)));
    EngineRequest again = Request(prompt);
    again.state_at = {edge};
    EXPECT_EQ(driver->Run(again).counters.cached_tokens, edge - 8);
    answers.push_back(driver->Run(Request(Parting(prompt, edge))));
    EXPECT_EQ(answers.back().counters.cached_tokens, edge - model_->get()->config().window);
  }
  answers[1].ExpectSame(answers[0], "another owner of the slot before");
}

TEST_F(Interrupted, WindowsThatAnExactReplayHasNotMadeExactAreNotKept) {
  const std::vector<int32_t> prompt = RandomPrompt(1032, 43);
  const std::vector<int32_t> parting = Parting(prompt, 768);
  const EngineOptions o = Options(ReplayMode::kExact, true);
  const auto want = Start(o)->Run(Request(parting));
  const auto driver = Start(o);
  driver->Run(Request(prompt));
  driver->LoseSnapshots(prompt);
  const auto again = driver->Run(Request(prompt));
  EXPECT_GT(again.counters.cached_tokens, 0);
  driver->Run(Request(parting)).ExpectSame(want, "behind a replay");
}

TEST_F(Interrupted, WindowsOfARebuiltPromptAreKeptWhereTheyAreExact) {
  const std::vector<int32_t> prompt = RandomPrompt(1000, 44);
  const EngineOptions o = Options(ReplayMode::kExact, true);
  for (const int32_t edge : {640, 768}) {
    const std::vector<int32_t> parting = Parting(prompt, edge);
    const auto want = Start(o)->Run(Request(parting));
    const auto driver = Start(o);
    EngineRequest request = Request(prompt);
    request.state_at = {640};
    bool parked = false;
    driver->Finish(driver->Queue(request), [&](Sequence& s) {
      if (parked || s.computed < 800) return;
      parked = true;
      driver->ParkNow(s);
      driver->LoseImage(s);
      driver->LoseSnapshots(prompt);
    });
    EXPECT_EQ(driver->state().statistics.resumes_rebuilt, 1);
    const auto got = driver->Run(Request(parting));
    got.ExpectSame(want, "edge " + std::to_string(edge));
    if (edge != 768) continue;
    EXPECT_EQ(got.counters.cached_tokens, 768) << "this one is whole";
  }
}

TEST_F(Interrupted, ParkedInARebuildItRunsAllRowsOfIt) {
  for (const ReplayMode resume : {ReplayMode::kExact, ReplayMode::kBounded}) {
    EngineOptions o = Options(ReplayMode::kExact);
    o.resume = resume;
    o.max_num_batched_tokens = 16;
    o.swa_pool_bytes = 0;
    const std::vector<int32_t> prompt = RandomPrompt(300, 45);
    const auto want = Start(o)->Run(Request(prompt, 40));
    const auto driver = Start(o);
    int32_t parks = 0;
    const auto got = driver->Finish(driver->Queue(Request(prompt, 40)), [&](Sequence& s) {
      const bool first = parks == 0 && s.num_generated == 20;
      const bool second =
          parks == 1 && s.state == SequenceState::kResuming && s.computed >= s.rebuild_end - 100;
      if (!first && !second) return;
      ++parks;
      driver->ParkNow(s);
    });
    EXPECT_EQ(parks, 2);
    EXPECT_EQ(driver->state().statistics.resumes_rebuilt, 2);
    EXPECT_EQ(got.ids.size(), 40u);
    if (resume == ReplayMode::kExact) got.ExpectSame(want, "parked in its rebuild");
  }
}

TEST_F(Interrupted, RowsOfARebuiltPromptAreCountedOnce) {
  for (const bool prompt_logprobs : {false, true}) {
    EngineOptions o = Options(ReplayMode::kExact);
    o.swa_pool_bytes = 0;
    EngineRequest request = Request(RandomPrompt(400, 46));
    request.sampling.prompt_logprobs = prompt_logprobs;
    const auto want = Start(o)->Run(request);
    const auto driver = Start(o);
    bool parked = false;
    const auto got = driver->Finish(driver->Queue(request), [&](Sequence& s) {
      if (parked || s.computed < 192) return;
      parked = true;
      driver->ParkNow(s);
    });
    const EngineStatistics& st = driver->state().statistics;
    EXPECT_EQ(st.resumes_rebuilt, 1);
    got.ExpectSame(want, "rebuilt");
    ExpectIdentity(got.counters);
    EXPECT_EQ(st.computed_tokens, got.counters.computed_tokens);
    EXPECT_EQ(got.prompt_logprobs.size(), prompt_logprobs ? 399u : 0u);
  }
}

TEST_F(Interrupted, AnAdmissionTakesTheLineageOfTheBlocksItGets) {
  const auto driver = Start(Options(ReplayMode::kBounded));
  EngineState& state = driver->state();
  BlockPool& blocks = state.memory->blocks();
  const std::vector<int32_t> prompt = RandomPrompt(1000, 47);
  driver->Run(Request(Parting(prompt, 640)));
  driver->Run(Request(prompt));
  Sequence& s = driver->Queue(Request(prompt));
  s.schedule.probe = ProbeHit(state, s);
  ASSERT_EQ(s.schedule.probe.plan.replay_gen, 2) << "blocks 5 and 6 are behind one replay";
  // Somebody computed them meanwhile.
  for (const size_t i : {5u, 6u}) {
    const int32_t block = blocks.Allocate();
    std::memcpy(state.memory->Block(block), state.memory->Block(blocks.Find(PromptKeys(s)[i])),
                static_cast<size_t>(state.memory->layout().block_bytes));
    ASSERT_TRUE(blocks.Publish(block, PromptKeys(s)[i], 0));
    blocks.ReleaseChain({&block, 1});
  }
  ASSERT_TRUE(Admit(state, s));
  NoteStart(state, s);
  EXPECT_EQ(s.cache.replay_gen, 1);
  driver->Finish(s);
}

}  // namespace
}  // namespace deepinfer
